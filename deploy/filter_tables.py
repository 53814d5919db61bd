"""Generates the tables of docs/guide/filter.md, with one row for each statistic and each rule of the filter. Pure."""

from __future__ import annotations

from squelch.actors.filter.rules import RULES
from squelch.actors.filter.scores import STATISTICS
from squelch.deploy.tables import replaced, table


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
