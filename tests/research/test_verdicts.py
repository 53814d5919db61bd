"""The tables give the verdicts that the studies gave when their runs lay in 297 files, recorded before they were moved.

A study that gets new runs (`research.constant_rate`) is not among them.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.faults import report as faults
from benchmarks.faults.__main__ import COMMITTED
from research import gaming, kept_share, made_to_collapse, noise, real_model, regimes, rescue
from research.claims import study as claims

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "verdicts.json").read_text())


def of_claims() -> dict[str, str]:
    rows = claims.report().figures["claims"]
    return {f"{r['source']}: {r['says']} ({r['where']}; {r['statistic']})": r["verdict"] for r in rows}


def of_made_to_collapse() -> dict[str, list[Any]]:
    found = made_to_collapse.measure(made_to_collapse.read_all(made_to_collapse.RESULTS), 1)
    rows = [row for own in (found, found["gentle"]) for kind in ("collapsed", "healthy") for row in own[kind]]
    return {row["run"]: [row[key] for key in ("alarm", "by", "early", "fall", "lead")] for row in rows}


def of_gaming() -> dict[str, int]:
    found = gaming.measure(gaming.committed(), gaming.QUICK_SERIES)
    return {key: value["raised"] for key, value in found.items() if isinstance(value, dict)}


def of_faults() -> dict[str, Any]:
    found = faults.figures(faults.read_boots(COMMITTED))
    return {key: found[key] for key in RECORDED["faults"]}


VERDICTS = {
    "claims": of_claims,
    "noise": lambda: {f"{r['arm']} at {r['p']:g}": r["verdict"] for r in noise.report().figures["rows"]},
    "kept_share": lambda: {r["environment"]: [r["best"], r["verdict"]] for r in kept_share.report().figures["rows"]},
    "rescue": lambda: {r["other"]: r["verdict"] for r in rescue.report().figures["compared"]},
    "made_to_collapse": of_made_to_collapse,
    "regimes": lambda: {one.run.name: one.untrue for one in regimes.committed()},
    "regime_counts": lambda: regimes.counted(regimes.committed()),
    "gaming": of_gaming,
    "real_model": lambda: [note for note in real_model.report().notes if "top_p minus none" in note],
    "faults": of_faults,
}


def test_every_recorded_verdict_is_compared() -> None:
    assert VERDICTS.keys() == RECORDED.keys()


@pytest.mark.parametrize("study", VERDICTS)
def test_the_verdicts_from_the_tables_are_those_from_the_files(study: str) -> None:
    assert VERDICTS[study]() == RECORDED[study]
