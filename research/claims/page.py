"""docs/research/claims.md, the table beside it and the printed one, made from the judged claims."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from benchmarks.common import markdown_table
from research.claims.table import NOT_COVERED
from research.claims.verdict import Verdict
from research.judging import PAGES, template
from research.kept import Kept, caveats
from research.tables import FOLDER

PAGE, DATA = PAGES / "claims.md", FOLDER / "claims.csv"
COLUMNS = ("claim", "where", "statistic", "claimed", "found [95%]", "runs", "verdict")
VERDICTS = get_args(Verdict)
DECIDED = ("holds", "fails")
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


def data(rows: Sequence[Mapping[str, Any]]) -> str:
    """The text of research/results/claims.csv: every judged claim."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *map(cells, rows)])
    return text.getvalue()


def _decided(rows: Sequence[Mapping[str, Any]]) -> str:
    """The verdicts on one claim, by where it was tried: an estimate where it decides, and the statistic where there are
    several; of those that are not significant the number."""
    found, tried, before = dict[str, list[str]](), Counter(row["where"] for row in rows), ""
    for row in rows:
        place = f"{row['where']}, {row['statistic']}" if tried[row["where"]] > 1 else row["where"]
        place, before = place.removeprefix(f"{before}, "), row["where"]
        found.setdefault(row["verdict"], []).append(f"{place} {_found({**row, 'note': ''})}")
    said = (f"**{verdict}** {'; '.join(own) if verdict in DECIDED else len(own)}" for verdict, own in found.items())
    return "; ".join(said)


def markdown(rows: Sequence[Mapping[str, Any]], runs: Sequence[Kept]) -> str:
    """The page's text."""
    lines = [template("claims"), f"All {len(runs)} planned runs are done. Of {len(rows)} claims: {counted(rows)}.", ""]
    lines += [line for note in caveats(runs) for line in (f"{note}.", "")]
    lines += _done(runs)
    by_claim = dict[tuple[str, str], list[Mapping[str, Any]]]()
    for row in rows:
        by_claim.setdefault((row["source"], row["says"]), []).append(row)
    decided = {claim: own for claim, own in by_claim.items() if any(row["verdict"] in DECIDED for row in own)}
    others = dict[str, list[str]]()
    for (source, says), own in by_claim.items():
        if (source, says) not in decided:
            others.setdefault(source, []).append(says + (f" ({len(own)} rows)" if len(own) > 1 else ""))
    lines += ["## The claims", ""]
    lines += markdown_table(
        ("claim", "verdicts"),
        ([cell.replace("|", "\\|") for cell in (": ".join(claim), _decided(own))] for claim, own in decided.items()),
    )
    lines += ["", "**Not significant**, wherever it was tried:", ""]
    lines += [f"- {source}: {'; '.join(own)}" for source, own in others.items()]
    lines += ["", "## Parts of the paper that no row covers", ""]
    lines += [f"- {source}: {why}" for source, why in NOT_COVERED.items()]
    return "\n".join(lines) + "\n"


def write(rows: Sequence[Mapping[str, Any]], runs: Sequence[Kept]) -> None:
    """Writes the page and the table."""
    PAGE.write_text(markdown(rows, runs))
    DATA.write_text(data(rows))


def _done(runs: Sequence[Kept]) -> list[str]:
    """The parts of the study and their runs."""
    counts = Counter(run.part for run in runs)
    return [f"Runs by part: {', '.join(f'{part} {number}' for part, number in counts.items())}.", ""] if runs else []
