"""Does the advice after an alarm work? A run collapses; new runs begin with its checkpoints and the advised settings.

python -m research.rescue [--quick] [--json]

This was fixed before the first cell ran; do not change it once a cell has. Only that a run is not made twice (`best`)
came later, after two such runs that were equal to the last digit.

    collapse       FrozenLake without the filter, with an entropy bonus of 0.2 (the recipe has 0.001), 60 steps, seeds 0
                   to 2. The fixed probe is read every 3 steps, tasks are validated every 10, and a checkpoint is saved
                   every 2
    rescue         for each seed new runs of 40 steps with the recipe's filter and entropy bonus, as
    docs/guide/reasoning.md
                   advises, which begin with
        named      the checkpoint that the first alarm named, the newest from before the fall that it saw; if it said
                   that there is none, as `anew`
        best       the checkpoint with the best validation, which is what one would keep without an alarm; where that is
                   the one that was named, it is the same run and is not made twice
        last       the last checkpoint of the collapsed run
        anew       the weights with which the collapsed run began
    success        on 256 fixed validation tasks after the last step
    figures        success from `named` minus that from each of the others, paired by seed: mean and 95% t-interval
    criteria       `named` minus `last` is above 0: holds if the lower end is, fails if the upper end is below 0.
                   `named` is not worse than `best`, nor than `anew`, by more than 0.05: holds if the lower end is above
                   -0.05, fails if the upper end is below it. Otherwise it cannot be told from three seeds

A seed without an alarm has no checkpoint that one named; it is left out, and counted, and the others are judged if they
are at least two. The runs are those of research/results/rescue.parquet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from research.judging import Report, judge
from research.kept import SUCCESS, Kept, caveats, last_success, not_worse, of_content, validated_by_seed
from research.kept import start as first_success
from research.tables import FOLDER, read_as
from squelch.cluster.sweep.table import t_interval, text

RESULTS = FOLDER / "rescue.parquet"
SEEDS = (0, 1, 2)
COLLAPSE_STEPS, RESCUE_STEPS = 60, 40
MEANS = "entropy0.2"
TOLERANCE = 0.05
BEGINNINGS = ("named", "best", "last", "anew")
OTHERS = BEGINNINGS[1:]


@dataclass(frozen=True)
class Collapsed:
    """A collapsed run and the name, step and checkpoint of its first alarm that saw a fall; None without one."""

    run: Kept
    alarm: Mapping[str, Any] | None

    @property
    def best_step(self) -> int:
        """The step of the best validation, the first of equal ones."""
        success = self.run.series(SUCCESS)
        return max(success, key=lambda step: success[step])


def with_shared(collapsed: Sequence[Collapsed], rescues: Sequence[Kept]) -> list[Kept]:
    """The rescues, and those from `named` once more as `best` where both begin with the same checkpoint."""
    steps = {one.run.seed: one.best_step for one in collapsed}
    made = {run.seed for run in rescues if run.arm == "best"}
    named_best = (run for run in rescues if run.arm == "named" and run.from_step == steps.get(run.seed))
    shared = [replace(run, arm="best") for run in named_best if run.seed not in made]
    return sorted([*rescues, *shared], key=lambda run: (run.seed, BEGINNINGS.index(run.arm)))


def committed() -> tuple[list[Collapsed], list[Kept]]:
    """The collapsed runs and the rescues. UserError if the table is damaged."""
    found = read_as(RESULTS, lambda content: Collapsed(of_content(content), content.get("first_alarm")))
    of_part = {part: [one for one in found if one.run.part == part] for part in ("collapse", "rescue")}
    return of_part["collapse"], [one.run for one in of_part["rescue"]]


def compared(runs: Sequence[Kept], other: str, quiet: Sequence[int] = ()) -> dict[str, Any]:
    """Success from `named` minus that from `other`, and the verdict of the module's head. `quiet`: the seeds whose
    collapsed run raised no alarm."""
    own, against = (validated_by_seed((run for run in runs if run.arm == arm), SEEDS) for arm in ("named", other))
    seeds = sorted(own.keys() & against.keys())
    difference = t_interval([last_success(own[seed]) - last_success(against[seed]) for seed in seeds])
    tolerance = 0.0 if other == "last" else TOLERANCE
    missing = set(SEEDS) - set(seeds) - set(quiet)
    verdict = not_worse(difference["low"], difference["high"], tolerance)
    return {
        "other": other,
        "seeds": seeds,
        "difference": difference,
        "tolerance": tolerance,
        "verdict": "not run" if missing else verdict,
    }


def measure(collapsed: Sequence[Collapsed], rescues: Sequence[Kept]) -> dict[str, Any]:
    """All figures."""
    quiet = [one.run.seed for one in collapsed if one.alarm is None]
    rescues = with_shared(collapsed, rescues)
    return {
        "benchmark": "rescue",
        "collapsed": [
            {
                "seed": one.run.seed,
                "alarm": one.alarm,
                "before": first_success(one.run),
                "best": max(one.run.series(SUCCESS).values()),
                "after": last_success(one.run),
            }
            for one in collapsed
        ],
        "rescues": [
            {
                "seed": run.seed,
                "begins": run.arm,
                "from_step": run.from_step,
                "before": first_success(run),
                "after": last_success(run),
                "mi": next(reversed(run.series("probe/mi").values()), None),
            }
            for run in rescues
        ],
        "compared": [compared(rescues, other, quiet) for other in OTHERS],
    }


COLUMNS = ("seed", "begins with", "of step", "success before", f"after {RESCUE_STEPS} steps", "MI of the probe, nats")


def rows(figures: Mapping[str, Any]) -> list[list[str]]:
    """The printed rows, one for each rescue."""
    return [
        [
            str(one["seed"]),
            one["begins"],
            str(one["from_step"]),
            *(f"{one[key]:.3f}" for key in ("before", "after")),
            "-" if one["mi"] is None else f"{one['mi']:.2f}",
        ]
        for one in figures["rescues"]
    ]


def notes(figures: Mapping[str, Any]) -> list[str]:
    """The lines under the table: how the runs collapsed, and the verdicts."""
    lines = []
    for one in figures["collapsed"]:
        how = "no alarm" if one["alarm"] is None else "{name} of step {step}".format(**one["alarm"])
        success = f"success {one['before']:.3f}, at best {one['best']:.3f}, after {COLLAPSE_STEPS} steps"
        lines.append(f"seed {one['seed']}, {MEANS}: {success} {one['after']:.3f}; first alarm: {how}")
    for one in figures["compared"]:
        bound = "above 0" if one["tolerance"] == 0 else f"above -{one['tolerance']}"
        figure = text(one["difference"], "+")
        lines.append(f"named minus {one['other']}: {figure}, {len(one['seeds'])} seeds; {bound}: {one['verdict']}")
    return lines


def report(quick: bool = False) -> Report:
    """Judges the table."""
    collapsed, rescues = committed()
    figures = measure(collapsed, rescues)
    runs = [*(one.run for one in collapsed), *rescues]
    told = [*notes(figures), *caveats(runs)]
    return Report(figures, COLUMNS, rows(figures), told)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the verdicts; returns the exit code."""
    return judge(__doc__, report, argv)


if __name__ == "__main__":
    raise SystemExit(main())
