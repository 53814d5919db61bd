"""Sphinx: the static site of these pages, with a search of its own and the reader's fonts (`make docs`).

An index page lists its pages once, as links that also work on a code host; the site's navigation is made from them.
"""

import re

from sphinx.application import Sphinx

project = "Squelch"
html_title = "Squelch"
extensions = ["myst_parser"]
myst_heading_anchors = 4
html_theme = "furo"
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False

LINKED_PAGE = re.compile(r"\[[^\]]+\]\((?!\.\.|https?:)([\w./-]+)\.md\)")


def _add_navigation(_app: Sphinx, name: str, source: list[str]) -> None:
    """Ends an index page with a hidden tree of the pages that it links to."""
    if name.split("/")[-1] == "index":
        pages = dict.fromkeys(LINKED_PAGE.findall(source[0]))
        source[0] += "\n".join(["", "```{toctree}", ":hidden:", "", *pages, "```", ""])


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _add_navigation)
