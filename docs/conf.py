"""Sphinx: the static site of these pages, with a search of its own and the reader's fonts (`make docs`).

The pages are written for a code host: a page is named by its file, an index page lists its pages once. The site makes
its navigation from these lists, a shelf for each index, and shows a page's title in place of its file's name. Its first
page ends with the README, so that the search finds the README's words.
"""

import re
from pathlib import Path

from sphinx.application import Sphinx

project = "Squelch"
html_title = "Squelch"
extensions = ["myst_parser"]
myst_heading_anchors = 4
html_theme = "furo"
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
html_static_path = ["_static"]
html_js_files = [("copy.js", {"defer": "defer"})]
html_css_files = ["copy.css"]

README = Path(__file__).parents[1] / "README.md"
LISTS = {"index": r"[\w-]+(?:/index)?", "reference/settings": r"settings/[\w-]+"}
"""Pages that list others, and which of their links are to pages of the list; of any other index those beside it."""
BESIDE = r"[\w-]+"
FILE_NAME = re.compile(r"\[[\w-]+\.md\](?=\([^)\s:]+\.md[#)])")


def _for_the_site(_app: Sphinx, name: str, source: list[str]) -> None:
    """Changes a page's text as the head of this module says."""
    text, listed = source[0], LISTS.get(name, BESIDE if name.endswith("/index") else None)
    pages = dict.fromkeys(re.findall(rf"\]\(({listed})\.md\)", text)) if listed else {}
    if name == "index":
        text += "\n" + _of_readme(README.read_text(encoding="utf-8"))
    text = FILE_NAME.sub("[]", text)
    source[0] = "\n".join([text, "```{toctree}", ":hidden:", "", *pages, "```", ""]) if pages else text


def _of_readme(text: str) -> str:
    """The README without its title, with links that lead from the first page; without those to files of no page."""
    rest = text.partition("\n")[2].replace("](docs/", "](")
    return re.sub(r"\[([^\]]+)\]\([A-Z]+\.md\)", r"\1", rest)


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _for_the_site)
