"""Does the advice after an alarm work? A run collapses; new runs begin with its checkpoints and the advised settings.

python -m benchmarks.studies.rescue --list
python -m benchmarks.studies.rescue --run [--only WORD ...] [--minutes N] [--parallel N]
    [--runs-dir DIR] [--set KEY=VALUE ...]
python -m benchmarks.studies.rescue [--quick] [--json]

Everything here was fixed before the first cell ran; do not change it once a cell has.

    collapse       FrozenLake without the filter, with an entropy bonus of 0.2 (the recipe has 0.001), 60 steps, seeds 0
                   to 2. The fixed probe is read every 3 steps, tasks are validated every 10, and a checkpoint is saved
                   every 2
    rescue         for each seed new runs of 40 steps with the recipe's filter and entropy bonus, as docs/reasoning.md
                   advises, which begin with
        named      the checkpoint that the first alarm named: the newest from before the fall that it saw
        best       the checkpoint with the best validation, which is what one would keep without an alarm
        last       the last checkpoint of the collapsed run
        anew       the weights with which the collapsed run began
    success        on 256 fixed validation tasks after the last step
    figures        success from `named` minus that from each of the others, paired by seed: mean and 95% t-interval
    criteria       `named` minus `last` is above 0: holds if the lower end is, fails if the upper end is below 0.
                   `named` is not worse than `best`, nor than `anew`, by more than 0.05: holds if the lower end is above
                   -0.05, fails if the upper end is below it. Otherwise it cannot be told from three seeds

`--list` and `--run` are those of `benchmarks.claims`; a rescue needs the folder of its collapsed run. A seed without an
alarm has no checkpoint that one named; it is left out, and counted. Without either form the committed files are judged,
`--quick` alike; nothing is run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.studies.cells import Report, Start, Study, StudyCell, command
from benchmarks.studies.kept import (
    Kept,
    early_ends,
    last_success,
    not_worse,
    read_all,
    validated_by_seed,
)
from benchmarks.studies.kept import start as first_success
from benchmarks.studies.made_to_collapse import GENTLE, GENTLE_STEP_S, OFTEN, STEP_S, readings
from benchmarks.studies.made_to_collapse import alarms as alarms_of
from cluster.errors import UserError
from cluster.runs.folder import RunFolder
from cluster.sweep.table import t_interval, text

SEEDS = (0, 1, 2)
COLLAPSE_STEPS, RESCUE_STEPS = 60, 40
MEANS = "entropy0.2"
TOLERANCE = 0.05
COMMON = (
    *("validation.tasks=256", "validation.every=10", "recorder.report=false", "recorder.port=0"),
    *("scorer.every=10", "loop.checkpoint_every=2", "loop.keep_checkpoints=1"),
)
RESCUE: Mapping[str, Any] = {"scorer.probe.every": 10}


def named(folder: Path) -> int:
    """The step of the checkpoint that the run's first alarm named. UserError if there was none."""
    found = [event["checkpoint"] for event in RunFolder(folder).events() if event.get("checkpoint") is not None]
    if not found:
        raise UserError(f"{folder}: no alarm named a checkpoint")
    return found[0]


def best(folder: Path) -> int:
    """The step of the best validation."""
    return _of_summary(folder)["success"]["best_step"]


def last(folder: Path) -> int:
    """The last step."""
    return _of_summary(folder)["steps"]


def _of_summary(folder: Path) -> Mapping[str, Any]:
    summary = RunFolder(folder).summary()
    if summary is None:
        raise UserError(f"{folder} has no summary.json; remove it and run its cell again")
    return summary


BEGINNINGS: Mapping[str, Callable[[Path], int]] = {"named": named, "best": best, "last": last, "anew": lambda _: 0}
OTHERS = tuple(arm for arm in BEGINNINGS if arm != "named")


def every_cell() -> Iterator[StudyCell]:
    """The collapsed runs, then the rescues seed by seed."""
    collapsed = {seed: _collapse(seed) for seed in SEEDS}
    yield from collapsed.values()
    for seed, run in collapsed.items():
        for arm, choose in BEGINNINGS.items():
            start = Start(run.name, choose)
            yield StudyCell("rescue", "frozenlake", arm, {}, seed, RESCUE_STEPS, STEP_S, RESCUE, start)


def _collapse(seed: int) -> StudyCell:
    return StudyCell("collapse", "frozenlake", MEANS, GENTLE[MEANS], seed, COLLAPSE_STEPS, GENTLE_STEP_S, OFTEN)


STUDY = Study("rescue", COMMON, tuple(every_cell()), Path(__file__).parent / "results" / "rescue")


def compared(runs: Sequence[Kept], other: str) -> dict[str, Any]:
    """Success from `named` minus that from `other`, and the verdict of the module's head."""
    own, against = (validated_by_seed((run for run in runs if run.arm == arm), SEEDS) for arm in ("named", other))
    seeds = sorted(own.keys() & against.keys())
    difference = t_interval([last_success(own[seed]) - last_success(against[seed]) for seed in seeds])
    tolerance = 0.0 if other == "last" else TOLERANCE
    verdict = not_worse(difference["low"], difference["high"], tolerance)
    missing = [seed for seed in SEEDS if seed not in seeds]
    return {
        "other": other,
        "seeds": seeds,
        "difference": difference,
        "tolerance": tolerance,
        "verdict": "not run" if missing else verdict,
    }


def collapsed(runs: Sequence[Kept]) -> list[dict[str, Any]]:
    """For each collapsed run: the step of its first alarm, None without one, and its success before and after."""
    found = []
    for run in (run for run in runs if run.part == "collapse"):
        alarms = alarms_of(readings(run))
        validated = run.series("validation/success")
        found.append(
            {
                "seed": run.seed,
                "alarm": alarms[0].step if alarms else None,
                "before": first_success(run),
                "best": max(validated.values()),
                "after": last_success(run),
            }
        )
    return found


def measure(runs: Sequence[Kept]) -> dict[str, Any]:
    """All figures."""
    rescues = [
        {
            "seed": run.seed,
            "begins": run.arm,
            "from_step": run.from_step,
            "before": first_success(run),
            "after": last_success(run),
            "mi": list(run.series("probe/mi").values())[-1:],
        }
        for run in sorted(
            runs, key=lambda run: (run.seed, list(BEGINNINGS).index(run.arm) if run.arm in BEGINNINGS else 0)
        )
        if run.part == "rescue"
    ]
    return {
        "benchmark": "rescue",
        "collapsed": collapsed(runs),
        "rescues": rescues,
        "compared": [compared(runs, other) for other in OTHERS],
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
            f"{one['mi'][0]:.2f}" if one["mi"] else "-",
        ]
        for one in figures["rescues"]
    ]


def notes(figures: Mapping[str, Any]) -> list[str]:
    """The lines under the table: how the runs collapsed, and the verdicts."""
    lines = [
        f"seed {one['seed']}, entropy bonus 0.2: success {one['before']:.3f}, at best {one['best']:.3f}, after "
        f"{COLLAPSE_STEPS} steps {one['after']:.3f}; "
        + ("no alarm" if one["alarm"] is None else f"first alarm at step {one['alarm']}")
        for one in figures["collapsed"]
    ]
    for one in figures["compared"]:
        bound = "above 0" if one["tolerance"] == 0 else f"above -{one['tolerance']}"
        figure = text(one["difference"], "+")
        lines.append(f"named minus {one['other']}: {figure}, {len(one['seeds'])} seeds; {bound}: {one['verdict']}")
    return lines


def report(quick: bool = False) -> Report:
    """Judges the committed files."""
    runs = read_all(STUDY.results)
    figures = measure(runs)
    return Report(figures, COLUMNS, rows(figures), [*notes(figures), *early_ends(runs)])


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one of the forms of the command; returns the exit code."""
    return command(__doc__, lambda: STUDY, report, argv)


if __name__ == "__main__":
    raise SystemExit(main())
