"""Which falls first when reasoning collapses: the MI of the probe, or the MI against near variations of its tasks?

python -m research.hard_lead [--quick] [--json]

The ten runs are done; research/results/hard_lead.parquet has their numbers. Everything here was fixed before the first.

    setting     FrozenLake, the demo's recipe and warm-up, 40 steps, an evaluation of the probe every 4 steps, with hard
                negatives and without links
    arms        collapse: no filter, entropy bonus 0.4, which ruined a run of docs/research/alarms.md within 40 steps.
                healthy: the recipe's filter and bonus. Seeds 0 to 4 each, of tasks and sampling: all start from the
                same weights and have the same tasks in the probe
    fall        the step at which a series comes down to 0.75 of its value before training and stays below, read off the
                line between the evaluation before and after; the last evaluation must be below
    lead        the fall of MI minus the fall of I_hard, steps, in one run; over the seeds in which both fall
    rise        I_hard at the last evaluation minus before training, nats
    criteria    I_hard falls earlier in collapse (lead above 0), and rises in healthy runs (rise above 0). Each holds if
                the whole t-interval over seeds is above 0, fails if below, else not significant; judged when all five
                seeds have it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from research.judging import Report, interval, judge, verdict
from research.kept import Kept, caveats, last_success, read_all
from research.tables import FOLDER
from squelch.cluster.sweep.table import text
from squelch.kit.process.terminal import known

RESULTS = FOLDER / "hard_lead.parquet"
SEEDS = (0, 1, 2, 3, 4)
FALLEN = 0.75
MI, HARD = "probe/mi", "probe/hard/mi"


def fall(series: Mapping[int, float]) -> float | None:
    """The step at which the series falls, as the head says; None if it does not, or was never positive."""
    steps = sorted(series)
    bar = FALLEN * series[steps[0]] if steps else 0.0
    above = [step for step in steps if series[step] >= bar]
    if bar <= 0 or not above or above[-1] == steps[-1]:
        return None
    before, after = next(pair for pair in pairwise(steps) if pair[0] == above[-1])
    return before + (after - before) * (series[before] - bar) / (series[before] - series[after])


def lead(run: Kept) -> float | None:
    """Steps by which I_hard falls before MI; None if one of them does not fall."""
    mi, hard = fall(run.series(MI)), fall(run.series(HARD))
    return None if mi is None or hard is None else mi - hard


def rise(run: Kept) -> float | None:
    """What I_hard gained, nats."""
    series = run.series(HARD)
    return series[max(series)] - series[min(series)] if series else None


CLAIMS: Sequence[tuple[str, str, Callable[[Kept], float | None]]] = (
    ("I_hard falls before MI, steps", "collapse", lead),
    ("I_hard rises, nats", "healthy", rise),
)


def row(run: Kept) -> list[str]:
    """The printed cells of a run."""
    mi, hard = run.series(MI), run.series(HARD)
    courses = [f"{series[min(series)]:.2f} to {series[max(series)]:.2f}" for series in (mi, hard)]
    falls = [known(fall(series), ".1f") for series in (mi, hard)]
    return [run.arm, str(run.seed), known(last_success(run)), *courses, *falls, known(lead(run), "+.1f")]


COLUMNS = ("arm", "seed", "success at the end", "MI, nats", "I_hard, nats", "MI falls", "I_hard falls", "lead, steps")


def report(quick: bool = False) -> Report:
    """Judges the table."""
    runs = sorted(read_all(RESULTS), key=lambda run: (run.arm, run.seed))
    notes, found = [], []
    for says, arm, measure in CLAIMS:
        own = [run for run in runs if run.arm == arm]
        difference = interval([measure(run) for run in own])
        judged = verdict(difference, len(SEEDS))
        notes.append(f"{says} ({arm}): {text(difference, '+')}, {judged}")
        found.append({"says": says, "arm": arm, "runs": len(own), "difference": difference, "verdict": judged})
    return Report(
        {"benchmark": "hard_lead", "claims": found}, COLUMNS, [row(run) for run in runs], [*notes, *caveats(runs)]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the verdicts; returns the exit code."""
    return judge(__doc__, report, argv)


if __name__ == "__main__":
    raise SystemExit(main())
