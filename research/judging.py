"""The command of a study whose runs are done: it judges the study's table, and writes the study's page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import parser_of, print_metrics
from squelch.cluster.sweep.table import t_interval
from squelch.kit.base.errors import UserError

PAGES = Path(__file__).parents[1] / "docs" / "research"
TEMPLATES = Path(__file__).parent / "pages"


@dataclass(frozen=True)
class Report:
    """What a study says. `metrics`: for `--json`; `columns`, `rows`, `notes`: what is printed without it; `write`: what
    `--write` does."""

    metrics: Mapping[str, Any]
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    notes: Sequence[str] = ()
    write: Callable[[], object] = lambda: None


def judge(
    words: str | None,
    report: Callable[[bool], Report],
    argv: Sequence[str] | None,
    *,
    quick: str = "the same: nothing is run",
    writes: str = "",
) -> int:
    """Prints a study's report; returns the exit code. `words`: the study's description; `report`: makes the report,
    which may be cheaper with `--quick`; `writes`: the page in docs/research that `--write` writes. Ends with exit code
    2 if a flag or the table is wrong."""
    parser = parser_of(words, quick)
    if writes:
        parser.add_argument("--write", action="store_true", help=f"write docs/research/{writes}")
    chosen = parser.parse_args(argv)
    try:
        found = report(chosen.quick)
    except (UserError, ValueError) as error:
        parser.error(str(error))
    show(found, chosen.json, bool(writes) and chosen.write)
    return 0


def interval(values: Sequence[float | None]) -> Mapping[str, Any]:
    """Mean and 95% t-interval over seeds of the values that are known."""
    return t_interval([value for value in values if value is not None])


def verdict(found: Mapping[str, Any], wanted: int) -> str:
    """`holds` if the interval lies above 0, `fails` if below, and how many of the wanted seeds it is over; the number
    alone before all are there."""
    low, high, counted = found["low"], found["high"], f"{found['n']} of {wanted} seeds"
    if found["n"] < wanted:
        return counted
    if low <= 0 <= high:
        return f"not significant, {counted}"
    return f"{'holds' if low > 0 else 'fails'}, {counted}"


def template(page: str) -> str:
    """The text of a page that is made from a table, with places for `str.format` where it has metrics."""
    return (TEMPLATES / f"{page}.md").read_text()


def show(report: Report, as_json: bool, write: bool = False) -> None:
    """Prints a report; `write`: after its page is written."""
    if write:
        report.write()
    print_metrics(report.metrics, as_json, report.columns, report.rows, report.notes)
