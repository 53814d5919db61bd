"""The tables give the verdicts that the studies gave when their runs lay in 297 files, recorded before they were moved.

The claims about D / surprise, actions and GRPO's own gradient were added afterwards. The verdicts of studies whose
judge is gone stand in their pages.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.faults import report as faults
from benchmarks.faults.__main__ import COMMITTED
from research import noise, regimes
from research.claims import study as claims
from research.judging import PAGES
from research.kept import SHARE, read_all
from research.tables import FOLDER, read

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "verdicts.json").read_text())


def of_claims() -> dict[str, str]:
    rows = claims.report().metrics["claims"]
    return {f"{r['source']}: {r['says']} ({r['where']}; {r['statistic']})": r["verdict"] for r in rows}


def of_faults() -> dict[str, Any]:
    found = faults.summary(faults.read_boots(COMMITTED))
    return {key: found[key] for key in RECORDED["faults"]}


VERDICTS = {
    "claims": of_claims,
    "noise": lambda: {f"{r['arm']} at {r['p']:g}": r["verdict"] for r in noise.report().metrics["rows"]},
    "regimes": lambda: {one.run.name: one.untrue for one in regimes.committed()},
    "regime_counts": lambda: regimes.counted(regimes.committed()),
    "faults": of_faults,
}


def kept_share_words(recorded: dict[str, list[Any]]) -> list[str]:
    names = ("countdown", "frozenlake", "sokoban")
    (tried, said), (best, _), (last, verdict) = (recorded[name] for name in names)
    rhos = f"{tried:g}, 0.319 [0.281, 0.357] | {best:g}, 0.693 [0.652, 0.734] | {last:g}, 0.433 [0.384, 0.481]"
    whole = f"on Sokoban 0.08 | {said} | {recorded['frozenlake'][1]}, by 0.005 | {verdict} |"
    return [f"its success | {rhos} |", whole]


def collapse_words(recorded: dict[str, list[Any]]) -> list[str]:
    """A row of the page begins with the fall, the alarm, what raised it and the lead; other runs have neither."""
    fallen = [row for row in recorded.values() if row[3] is not None]
    assert len(fallen) == 8 and all(row == [None, "", 0, None, None] for row in recorded.values() if row not in fallen)
    names = {"mi": "MI", "dependence": "D", "mi and dependence": "MI and D"}
    rows = [f"| {fall} | {alarm}, {names[by]} | {lead} |" for alarm, by, _, fall, lead in fallen]
    return [*rows, *(f"{run} | never | never |" for run in ("a reward of 1", "six healthy runs", "pays, the same"))]


def rescue_words(recorded: dict[str, str]) -> list[str]:
    return [
        f"minus from the last: +0.271 [-0.584, +1.126], {recorded['last']} (claimed: above 0)",
        f"Minus anew: -0.004 [-0.072, +0.064], {recorded['anew']} (claimed: above -0.05)",
        f"by validation, which is the same checkpoint: 0, {recorded['best']} (claimed: above -0.05)",
    ]


FINISHED: dict[str, tuple[str, Callable[[Any], list[str]]]] = {
    "kept_share": ("findings", kept_share_words),
    "rescue": ("alarms", rescue_words),
    "made_to_collapse": ("alarms", collapse_words),
    "real_model": ("real-model-study", lambda recorded: [f"- {note}" for note in recorded]),
}
"""The page of each study whose judge is gone, and what of its recorded verdicts stands there."""


def test_the_share_of_d_beside_the_alarms_is_that_of_the_committed_runs() -> None:
    arms = {"entropy1": "entropy bonus 1.0", "entropy0.4": "entropy bonus 0.4", "entropy0.2": "entropy bonus 0.2"}
    arms |= {"length": "a length penalty of 3 against a reward of 1 | never"}
    page = (PAGES / "alarms.md").read_text().splitlines()
    for run in read_all(FOLDER / "made_to_collapse.parquet"):
        course = [*run.series(SHARE).values()]
        words = f" {course[0]:.2f} to {course[-1]:.2f} |"
        if run.arm in arms:
            assert [row for row in page if row.strip().startswith(f"| {arms[run.arm]}") and row.endswith(words)], (
                run.name
            )
        elif run.part != "healthy":
            assert [row for row in page if row.endswith(words)], run.name


def test_every_recorded_verdict_is_compared() -> None:
    assert VERDICTS.keys() | FINISHED.keys() == RECORDED.keys() and not VERDICTS.keys() & FINISHED.keys()


@pytest.mark.parametrize("study", VERDICTS)
def test_the_verdicts_from_the_tables_are_those_from_the_files(study: str) -> None:
    assert VERDICTS[study]() == RECORDED[study]


@pytest.mark.parametrize("study", FINISHED)
def test_the_verdicts_of_finished_studies_stand_in_their_pages(study: str) -> None:
    page, words_of = FINISHED[study]
    words = " ".join((PAGES / f"{page}.md").read_text().split())
    assert not [part for part in words_of(RECORDED[study]) if part not in words]


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.parquet")), ids=lambda file: file.stem)
def test_the_table_of_every_study_can_be_read(file: Path) -> None:
    assert all(run["tables"] for run in read(file)) and file.stat().st_size
