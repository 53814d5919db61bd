"""Every claim of the paper that this scale can carry: its runs, its statistic, and the verdict.

python -m research.claims --list [--only WORD ...]
python -m research.claims --run [--only WORD ...] [--minutes N] [--parallel N]
    [--runs-dir DIR] [--set KEY=VALUE ...]
python -m research.claims [--quick] [--json] [--write]

`--list` prints the cells in order of value, with the minutes that each is expected to take on two idle cores. `--run`
runs those that are not done, in that order, for N minutes (models are built before). The cell under way then saves a
checkpoint, and the same command goes on there. A finished cell leaves one small file in `research/results/claims`;
commit it. A word is a part or the name of a cell, with wildcards: `--only lead`, `--only 'long-sokoban-*'`.

Without `--list` and `--run` the claims are judged by the files there (`--quick` alike); nothing is run. `--write`
writes docs/research/claims.md. Cells and claims were fixed before the first run (`plan.py`, `table.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from research.cells import Report, command
from research.claims.page import COLUMNS, PAGE, cells, counted, markdown
from research.claims.plan import STUDY
from research.claims.statistics import Pool
from research.claims.table import every_claim
from research.claims.verdict import verdict
from research.kept import caveats, read_all


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


def report(quick: bool = False) -> Report:
    """Judges the claims by the committed files."""
    runs = read_all(STUDY.results)
    found = judged(Pool(runs))
    figures = {"benchmark": "claims", "runs": len(runs), "planned": len(STUDY.cells), "claims": found}
    notes = [counted(found), f"{len(runs)} of {len(STUDY.cells)} runs are done", *caveats(runs)]
    page = markdown(found, runs, STUDY.cells)
    return Report(figures, COLUMNS, [cells(row) for row in found], notes, page)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one of the forms of the command; returns the exit code."""
    return command(__doc__, lambda: STUDY, report, argv, page=PAGE)
