"""How much the agent does and says, and how much of its answers it takes from its reasoning.

    python -m research.answers             # prints the tables of docs/research/findings.md

D is in nats an answer, so an answer of two actions can have twice the D of an answer of one. D / surprise does not
depend on the length: the share of an answer's surprise, under reasonings of other prompts, that its own reasoning
removes. Actions an episode are counted in training; runs that did not record them are of Sokoban, whose returns tell
them (`research.kept.derived`).
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from benchmarks.common import markdown_table
from research.claims.statistics import Pool, gained, known, mean
from research.judging import Report, interval, judge
from research.kept import ACTIONS, DEPENDENCE, SHARE, SUCCESS, SURPRISE, Kept, last_success, read_all, start
from research.tables import FOLDER
from squelch.cluster.sweep.table import text

EDGE = 10
"""Steps at the beginning and at the end of a run over which its actions are averaged."""
Value = Callable[[Kept], float | None]


def early_actions(run: Kept) -> float | None:
    """Actions an episode in the first `EDGE` steps."""
    return mean(known(run, ACTIONS, 0, EDGE))


def late_actions(run: Kept) -> float | None:
    """Actions an episode in the last `EDGE` steps that the run made."""
    return mean(known(run, ACTIONS, run.steps - EDGE, run.steps))


def change_of(key: str) -> Value:
    """The last value of a metric minus its first."""
    return lambda run: gained(key)(run, run.steps)


MEASURES: Mapping[str, tuple[Value, str]] = {
    "actions an episode, first ten steps": (early_actions, ""),
    "last ten": (late_actions, ""),
    "change of D": (change_of(DEPENDENCE), "+"),
    "change of surprise": (change_of(SURPRISE), "+"),
    "change of D / surprise": (change_of(SHARE), "+"),
}
"""By its column, what is measured of a run, and the sign with which it is printed."""


def measured(runs: Sequence[Kept]) -> dict[str, Mapping[str, Any]]:
    """Every measure's mean and interval over the runs of an arm."""
    return {name: interval([value(run) for run in runs]) for name, (value, _) in MEASURES.items()}


def cells(runs: Sequence[Kept]) -> list[str]:
    """The printed measures of an arm."""
    return [text(found, MEASURES[name][1]) for name, found in measured(runs).items()]


def differences(more: Mapping[int, Kept], less: Mapping[int, Kept]) -> list[str]:
    """The printed differences of two arms, more minus less, paired by seed."""
    seeds = sorted(more.keys() & less.keys())
    printed = []
    for value, _ in MEASURES.values():
        pairs = [(value(more[seed]), value(less[seed])) for seed in seeds]
        printed.append(text(interval([a - b for a, b in pairs if a is not None and b is not None]), "+"))
    return printed


@cache
def of_study(name: str) -> Sequence[Kept]:
    """The condensed runs of a study."""
    return read_all(FOLDER / f"{name}.parquet")


LONG = {"lead": 180, "long": 300}
"""The steps of the long runs of Sokoban, by their part of `research.claims`."""


def long_rows() -> list[list[str]]:
    """The long runs of Sokoban: both arms and their difference, at both lengths."""
    rows = []
    runs = [run for run in of_study("claims") if run.recipe == "sokoban"]
    for part, steps in LONG.items():
        arms = {arm: {run.seed: run for run in runs if (run.part, run.arm) == (part, arm)} for arm in ("none", "top_p")}
        for arm, own in arms.items():
            rows.append([f"{steps} steps, {arm}", str(len(own)), *cells([*own.values()])])
        rows.append([f"{steps} steps, difference", str(len(arms["none"])), *differences(arms["top_p"], arms["none"])])
    return rows


CRITERIA = {
    "top_k0.5": "the largest half by reward variance (`top_k`, 0.5)",
    "min_p0.05": "groups of at least 0.05 of the largest reward variance (`min_p`)",
    "min_p0.2": "the same, 0.2",
    "reward_sum": "the largest half by the sum of rewards",
    "top_k0.25": "the largest quarter by reward variance",
    "entropy_variance": "top-p 0.9 by the variance of entropy",
    "none": "everything: no filter",
    "entropy": "top-p 0.9 by entropy",
    "length": "top-p 0.9 by length",
    "smallest": "the smallest half by reward variance",
}
"""The arms of the comparison of criteria, and what each keeps."""
CRITERIA_STEPS = 60


def criterion_rows() -> list[list[str]]:
    """What each criterion keeps, its runs, their best success after step 0, its difference, the actions at the end."""
    pool = Pool(of_study("claims"))
    largest = pool.arm("sokoban", "top_k0.5", CRITERIA_STEPS)
    rows = []
    for arm, says in CRITERIA.items():
        own = pool.arm("sokoban", arm, CRITERIA_STEPS)
        gains = [_best(largest[seed]) - _best(own[seed]) for seed in sorted(own.keys() & largest.keys())]
        late = [mean(known(run, ACTIONS, CRITERIA_STEPS - EDGE, CRITERIA_STEPS)) for run in own.values()]
        minus = "" if own == largest else text(interval(gains), "+")
        success = f"{statistics.fmean(map(_best, own.values())):.3f}"
        rows.append([says, str(len(own)), success, minus, text(interval(late))])
    return rows


def _best(run: Kept) -> float:
    return max(known(run, SUCCESS, 0, CRITERIA_STEPS))


def actions_and_success() -> tuple[int, float]:
    """Over the Sokoban runs of `research.claims` and `research.mechanism`: their number, and the correlation of the
    actions an episode at the end with the change of validation success."""
    runs = [run for name in ("claims", "mechanism") for run in of_study(name)]
    pairs = [
        (actions, last_success(run) - before)
        for run in runs
        if run.recipe == "sokoban" and (actions := late_actions(run)) is not None and (before := start(run)) is not None
    ]
    return len(pairs), statistics.correlation([a for a, _ in pairs], [b for _, b in pairs])


ARM = ("runs", "seeds", *MEASURES)
CRITERION = ("what is kept", "runs", "best success", "largest half by reward variance, minus this", "actions, end")


def tables() -> tuple[str, str]:
    """The two tables of docs/research/findings.md."""
    return "\n".join(markdown_table(ARM, long_rows())), "\n".join(markdown_table(CRITERION, criterion_rows()))


def report(quick: bool = False) -> Report:
    """The tables, which take no time."""
    number, correlation = actions_and_success()
    long, criteria = tables()
    found = {"runs": number, "correlation of actions with the change of success": correlation}
    return Report(found, tuple(found), [[number, f"{correlation:.2f}"]], ("", long, "", criteria))


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the tables; returns the exit code."""
    return judge(__doc__, report, argv)


if __name__ == "__main__":
    sys.exit(main())
