"""Tables in pages of the docs, between the lines `<!-- begin NAME ... -->` and `<!-- end NAME -->`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable


def replaced(page: str, name: str, text: str) -> str:
    """The page with this text between the marks of a name. ValueError if the page lacks the marks."""
    marks = re.compile(rf"(<!-- begin {name}\b[^\n]*\n).*?(<!-- end {name} -->)", re.DOTALL)
    if not marks.search(page):
        raise ValueError(f"the page has no lines `<!-- begin {name} ... -->` and `<!-- end {name} -->`")
    return marks.sub(lambda found: found[1] + text + found[2], page)


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A table in Markdown."""
    return "".join(_row(cells) for cells in (head, ("---",) * len(head), *rows))


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(re.sub(r"([|<>*])", r"\\\1", cell) for cell in cells) + " |\n"
