"""docs/research/claims.md and the printed table, made from the judged claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from benchmarks.common import markdown_table
from research.claims.table import NOT_COVERED
from research.claims.verdict import Verdict
from research.judging import PAGES, template
from research.kept import Kept, caveats

PAGE = PAGES / "claims.md"
COLUMNS = ("claim", "where", "statistic", "claimed", "found [95%]", "runs", "verdict")
VERDICTS = get_args(Verdict)
RATE = "at a decaying rate"
"""The recipes of all of these runs let the learning rate decay."""


def cells(row: Mapping[str, Any]) -> list[str]:
    """The printed cells of a judged claim."""
    says = f"{row['source']}: {row['says']}"
    where = f"{row['where']}, {RATE}"
    return [says, where, row["statistic"], row["claimed"], _found(row), str(row["runs"]), row["verdict"]]


def _found(row: Mapping[str, Any]) -> str:
    note = f" ({row['note']})" if row["note"] else ""
    if row["mean"] is None:
        return f"-{note}"
    if row["low"] is None:
        return f"{row['mean']:.3f}{note}"
    return f"{row['mean']:.3f} [{row['low']:.3f}, {row['high']:.3f}]{note}"


def counted(rows: Sequence[Mapping[str, Any]]) -> str:
    """How many claims have each verdict."""
    count = Counter(row["verdict"] for row in rows)
    return ", ".join(f"{name}: {count[name]}" for name in VERDICTS)


def markdown(rows: Sequence[Mapping[str, Any]], runs: Sequence[Kept]) -> str:
    """The page's text."""
    lines = [template("claims"), f"All {len(runs)} planned runs are done. Of {len(rows)} claims: {counted(rows)}.", ""]
    lines += [line for note in caveats(runs) for line in (f"{note}.", "")]
    lines += _done(runs)
    lines += ["## The claims", ""]
    lines += markdown_table(COLUMNS, ([cell.replace("|", "\\|") for cell in cells(row)] for row in rows))
    lines += ["", "## Parts of the paper that no row covers", ""]
    lines += [f"- {source}: {why}" for source, why in NOT_COVERED.items()]
    return "\n".join(lines) + "\n"


def _done(runs: Sequence[Kept]) -> list[str]:
    """A table of the parts of the study and their runs."""
    lines = ["| part | recipes | runs |", "|---|---|---|"]
    for part, number in Counter(run.part for run in runs).items():
        recipes = ", ".join(sorted({run.recipe for run in runs if run.part == part}))
        lines.append(f"| {part} | {recipes} | {number} |")
    return [*lines, ""]
