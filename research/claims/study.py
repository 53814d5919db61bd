"""Every claim of the paper that this scale can carry: its statistic, and the verdict on the committed runs.

python -m research.claims [--quick] [--json] [--write]

The 153 runs are done; research/results/claims.parquet has their numbers, and what each changed of its recipe. Cells and
claims were fixed before the first run (`plan.py`, `table.py`). `--write` writes docs/research/claims.md and
research/results/claims.csv.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from research.claims.page import COLUMNS, PAGE, cells, counted, write
from research.claims.statistics import Pool
from research.claims.table import every_claim
from research.claims.verdict import verdict
from research.judging import Report, judge
from research.kept import caveats, read_all
from research.tables import FOLDER

RESULTS = FOLDER / "claims.parquet"


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
    """Judges the claims by the table."""
    runs = read_all(RESULTS)
    found = judged(Pool(runs))
    metrics = {"benchmark": "claims", "runs": len(runs), "claims": found}
    notes = [counted(found), f"{len(runs)} runs", *caveats(runs)]
    return Report(metrics, COLUMNS, [cells(row) for row in found], notes, lambda: write(found, runs))


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the verdicts; returns the exit code."""
    return judge(__doc__, report, argv, writes=PAGE.name)
