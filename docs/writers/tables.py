"""Links and tables in pages of the docs; a table stands between the lines `<!-- begin NAME ... -->` and
`<!-- end NAME -->`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

PAGE = re.compile(r"docs/((?:guide|research|reference)/[\w-]+\.md)(#[\w-]+)?")
"""A page as docstrings and helps name it."""


def replaced(page: str, name: str, text: str) -> str:
    """The page with this text between the marks of a name. ValueError if the page lacks the marks."""
    marks = re.compile(rf"(<!-- begin {name}\b[^\n]*\n).*?(<!-- end {name} -->)", re.DOTALL)
    if not marks.search(page):
        raise ValueError(f"the page has no lines `<!-- begin {name} ... -->` and `<!-- end {name} -->`")
    return marks.sub(lambda found: found[1] + text + found[2], page)


def linked(text: str, docs: str) -> str:
    """The text with links in place of the paths of pages; `docs` leads from its page to the folder of pages."""
    return PAGE.sub(lambda found: f"[{found[1].rpartition('/')[2]}]({docs}/{found[1]}{found[2] or ''})", text)


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A table in Markdown."""
    return "".join(_row(cells) for cells in (head, ("---",) * len(head), *rows))


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(re.sub(r"([|<>*])", r"\\\1", cell) for cell in cells) + " |\n"
