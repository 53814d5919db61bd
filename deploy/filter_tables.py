"""Generates the tables of docs/filter.md, with one row for each statistic and each rule of the filter. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from actors.filter.rules import RULES
from actors.filter.scores import STATISTICS


def with_tables(page: str) -> str:
    """The page with up-to-date tables. ValueError if the page lacks the marks of a table."""
    return _replaced(_replaced(page, "statistics", _statistics()), "rules", _rules())


def _replaced(page: str, name: str, table: str) -> str:
    marks = re.compile(rf"(<!-- begin {name}\b[^\n]*\n).*?(<!-- end {name} -->)", re.DOTALL)
    if not marks.search(page):
        raise ValueError(f"docs/filter.md has no lines `<!-- begin {name} ... -->` and `<!-- end {name} -->`")
    return marks.sub(lambda found: found[1] + table + found[2], page)


def _statistics() -> str:
    rows = (
        (f"`{entry.name}`", entry.help, entry.unit, "yes" if entry.may_be_negative else "no")
        for entry in STATISTICS.values()
    )
    return _table(("`statistic`", "score of a group", "unit", "can be negative"), rows)


def _rules() -> str:
    rows = (
        (f"`{rule.name}`", rule.keeps, rule.keeps_smallest, ", ".join(f"`{name}`" for name in rule.settings))
        for rule in RULES.values()
    )
    return _table(("`rule`", "keeps", "with `keep: smallest`", "settings"), rows)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "".join(_row(cells) for cells in (head, ("---",) * len(head), *rows))


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(re.sub(r"([|<>*])", r"\\\1", cell) for cell in cells) + " |\n"
