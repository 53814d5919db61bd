"""What the filter saves, of pairs of runs that differ in the filter alone: groups learned from, and the gain for them.

    python -m research.savings             # prints the tables of docs/research/findings.md

A pair is one seed with and without top-p 0.9. Where a run kept only the kept share of each block of steps, its groups
are counted from that.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.common import markdown_table
from research.judging import Report, judge
from research.kept import SUCCESS, Kept, read_all
from research.tables import FOLDER, read
from squelch.cluster.sweep.table import t_interval, text

PROMPTS = 8
"""Groups of a step in all of these runs."""
COLUMNS = (
    *("runs", "pairs", "steps", "groups learned from, no filter", "top-p", "gain, no filter", "top-p"),
    *("gain for 100 groups, no filter", "top-p"),
)
SECONDS = ("runs", "pairs", "share of a step's seconds that the filter saves")
NAMES = {"sokoban": "Sokoban, GRPO, tiny policy", "frozenlake": "FrozenLake, GRPO, tiny policy"}


@dataclass(frozen=True)
class Learned:
    """What one run learned from, and its gain: the last validation minus that before training."""

    study: str
    filtered: bool
    seed: int
    steps: int
    groups: float
    gain: float


def learned_from(run: Kept) -> float:
    """Groups that the run learned from."""
    found, before = 0.0, 0
    for step, share in run.series("kept_fraction").items():
        end = min(step, run.steps)
        found, before = found + share * PROMPTS * (end - before), end
    return found


def of_claims() -> Iterator[Learned]:
    """The long runs of the tiny policy, with and without the filter."""
    for run in read_all(FOLDER / "claims.parquet"):
        if run.part in ("lead", "long") and run.arm in ("none", "top_p"):
            success = list(run.series(SUCCESS).values())
            of = NAMES[run.recipe], run.arm == "top_p", run.seed, run.horizon
            yield Learned(*of, learned_from(run), success[-1] - success[0])


def of_real_models() -> Iterator[Learned]:
    """SmolLM2's runs of two entropy bonuses; those that counted no groups are left out."""
    for run in read(FOLDER / "real_model.parquet"):
        rows = run["tables"]["rows"]
        if run["part"].startswith("question") and "kept_groups" in rows:
            before, after = (run["success"][when]["success"] for when in ("before", "after"))
            study = f"Countdown, GRPO, SmolLM2, bonus {run['entropy']:g}"
            groups = sum(kept for kept in rows["kept_groups"] if kept is not None)
            steps = run.get("planned", run["steps"])
            yield Learned(study, run["filter"] == "top_p", run["seed"], steps, groups, after - before)


def rows() -> list[list[str]]:
    """A row for each study and number of steps, over the seeds that have both runs."""
    found: dict[tuple[str, int], tuple[dict[int, Learned], dict[int, Learned]]] = {}
    for run in (*of_claims(), *of_real_models()):
        found.setdefault((run.study, run.steps), ({}, {}))[run.filtered][run.seed] = run
    return [_row(study, steps, *sides) for (study, steps), sides in sorted(found.items(), reverse=True)]


def _row(study: str, steps: int, plain: dict[int, Learned], filtered: dict[int, Learned]) -> list[str]:
    sides = [[arm[seed] for seed in sorted(plain.keys() & filtered.keys())] for arm in (plain, filtered)]
    groups = [t_interval([run.groups for run in side])["mean"] for side in sides]
    gains = [t_interval([run.gain for run in side]) for side in sides]
    each = [t_interval([100 * run.gain / run.groups for run in side]) for side in sides]
    return [
        *(study, str(len(sides[0])), str(steps), *(f"{mean:.0f}" for mean in groups)),
        *(text(interval, "+") for interval in (*gains, *each)),
    ]


def seconds() -> list[list[str]]:
    """By environment, of the long pairs of the tiny policy: their number, and which share of a step the filter saves.
    A run's step is its median one, on cores that other work shared."""
    found: dict[str, dict[int, dict[str, float]]] = {}
    for run in read(FOLDER / "claims.parquet"):
        if run["part"] in ("lead", "long") and run["arm"] in ("none", "top_p"):
            found.setdefault(NAMES[run["recipe"]], {}).setdefault(run["seed"], {})[run["arm"]] = run["step_seconds"]
    saved = {name: [1 - pair["top_p"] / pair["none"] for pair in pairs.values()] for name, pairs in found.items()}
    return [[name, str(len(shares)), text(t_interval(shares), "+")] for name, shares in sorted(saved.items())]


def tables() -> tuple[str, str]:
    """The two tables in Markdown."""
    both = ((COLUMNS, rows()), (SECONDS, seconds()))
    learned, timed = ("\n".join(markdown_table(columns, own)) for columns, own in both)
    return learned, timed


def report(quick: bool = False) -> Report:
    """The tables, which take no time."""
    found = rows()
    metrics = {", ".join(row[:3]): dict(zip(COLUMNS, row, strict=True)) for row in found}
    notes = [f"{name}, {pairs} pairs: a step is shorter by {share}" for name, pairs, share in seconds()]
    return Report(metrics, COLUMNS, found, notes)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table; returns the exit code."""
    return judge(__doc__, report, argv)


if __name__ == "__main__":
    sys.exit(main())
