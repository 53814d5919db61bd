"""Writes the tables of statistics and rules in docs/guide/filter.md: `python -m docs.writers.filter`."""

from __future__ import annotations

from pathlib import Path

from docs.writers.tables import replaced, table
from squelch.kit.filter.rules import RULES
from squelch.kit.filter.statistics import STATISTICS

PAGE = Path(__file__).resolve().parents[1] / "guide" / "filter.md"


def with_tables(page: str) -> str:
    """The page with up-to-date tables. ValueError if the page lacks the marks of a table."""
    return replaced(replaced(page, "statistics", _statistics()), "rules", _rules())


def _statistics() -> str:
    rows = (
        (f"`{entry.name}`", entry.help, entry.unit, "yes" if entry.may_be_negative else "no")
        for entry in STATISTICS.values()
    )
    return table(("`statistic`", "score of a group", "unit", "can be negative"), rows)


def _rules() -> str:
    rows = (
        (f"`{rule.name}`", rule.keeps, rule.keeps_smallest, ", ".join(f"`{name}`" for name in rule.settings))
        for rule in RULES.values()
    )
    return table(("`rule`", "keeps", "with `keep: smallest`", "settings"), rows)


def main() -> None:
    """Writes the tables into the page."""
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
