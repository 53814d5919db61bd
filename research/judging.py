"""The command of a study whose runs are done: it judges the study's table, and writes the study's page."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import print_figures
from squelch.cluster.errors import UserError

PAGES = Path(__file__).parents[1] / "docs" / "research"


@dataclass(frozen=True)
class Report:
    """What a study says of its table. `figures`: for `--json`; `page`: the text of its page, if it has
    one."""

    figures: Mapping[str, Any]
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    notes: Sequence[str] = ()
    page: str = ""


def judge(
    words: str | None,
    report: Callable[[bool], Report],
    argv: Sequence[str] | None,
    *,
    quick: str = "the same: nothing is run",
    page: Path | None = None,
) -> int:
    """Prints a study's report; returns the exit code. `words`: the study's description; `report`: makes the report,
    which may be cheaper with `--quick`; `page`: where `--write` puts the report's page. Ends with exit code 2 if a flag
    or the table is wrong."""
    parser = argparse.ArgumentParser(description=words, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_forms(parser, quick, page)
    chosen = parser.parse_args(argv)
    try:
        show(report(chosen.quick), chosen, page)
    except (UserError, ValueError) as error:
        parser.error(str(error))
    return 0


def add_forms(parser: argparse.ArgumentParser, quick: str, page: Path | None) -> None:
    """Adds the flags of a report."""
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    if page is not None:
        parser.add_argument("--write", action="store_true", help=f"write docs/research/{page.name}")


def show(report: Report, chosen: argparse.Namespace, page: Path | None) -> None:
    """Prints a report in the form that the flags ask for, and writes its page with `--write`."""
    if page is not None and chosen.write and report.page:
        page.write_text(report.page)
    print_figures(report.figures, chosen.json, report.columns, report.rows, report.notes)
