"""Every claim of the paper that this scale can carry: its runs, its statistic, and the verdict.

python -m benchmarks.claims --list [--only WORD ...]
python -m benchmarks.claims --run [--only WORD ...] [--minutes N] [--runs-dir DIR] [--set KEY=VALUE ...]
python -m benchmarks.claims [--quick] [--json] [--write]

`--list` prints the cells in order of value, with the minutes that each is expected to take on two idle cores. `--run`
runs those that are not done, in that order, for N minutes (models are built before). The cell under way then saves a
checkpoint, and the same command goes on there. A finished cell leaves one small file in `benchmarks/claims/results`;
commit it. A word is a part or the name of a cell, with wildcards: `--only lead`, `--only 'long-sokoban-*'`.

Without `--list` and `--run` the claims are judged by the files there (`--quick` alike); nothing is run. `--write`
writes docs/claims.md. Cells and claims were fixed before the first run (`plan.py`, `table.py`).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.claims.page import COLUMNS, PAGE, cells, counted, markdown
from benchmarks.claims.plan import STUDY
from benchmarks.claims.statistics import Pool
from benchmarks.claims.table import every_claim
from benchmarks.claims.verdict import verdict
from benchmarks.common import print_figures
from benchmarks.studies import cells as running
from benchmarks.studies.kept import read_all
from cluster.errors import UserError


def judged(pool: Pool) -> list[dict[str, Any]]:
    """A row for each claim: the claim, its estimate, its verdict."""
    rows = []
    for claim in every_claim():
        found = claim.of(pool)
        rows.append(
            {
                "source": claim.source,
                "says": claim.says,
                "where": claim.where,
                "statistic": claim.statistic,
                "claimed": claim.region.text,
                "least": claim.least,
                **asdict(found),
                "verdict": verdict(found, claim),
            }
        )
    return rows


def report(as_json: bool, write: bool) -> None:
    """Judges the claims by the committed files and prints the verdicts."""
    runs = read_all(STUDY.results)
    rows = judged(Pool(runs))
    if write:
        PAGE.write_text(markdown(rows, runs, STUDY.cells))
    figures = {"benchmark": "claims", "runs": len(runs), "planned": len(STUDY.cells), "claims": rows}
    notes = [counted(rows), f"{len(runs)} of {len(STUDY.cells)} runs are done"]
    print_figures(figures, as_json, COLUMNS, [cells(row) for row in rows], notes)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one of the forms of the command; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    form = running.add_flags(parser)
    form.add_argument("--quick", action="store_true", help="judge the committed files, as without it")
    parser.add_argument("--json", action="store_true", help="judge: one JSON object instead of the table")
    parser.add_argument("--write", action="store_true", help="judge: write docs/claims.md")
    chosen = parser.parse_args(argv)
    try:
        code = running.listed_or_run(STUDY, chosen)
        if code is None:
            report(chosen.json, chosen.write)
    except (UserError, ValueError) as error:
        parser.error(str(error))
    return code or 0
