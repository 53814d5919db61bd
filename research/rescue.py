"""Does the advice after an alarm work? A run collapses; new runs begin with its checkpoints and the advised settings.

python -m research.rescue --list
python -m research.rescue --run [--only WORD ...] [--minutes N] [--parallel N]
    [--runs-dir DIR] [--set KEY=VALUE ...]
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

`--list` and `--run` are those of `research.claims`; a rescue needs the folder of its collapsed run. A seed without an
alarm has no checkpoint that one named; it is left out, and counted, and the others are judged if they are at least two.
Without either form the committed files are judged, `--quick` alike; nothing is run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from research.cells import NothingToStart, Report, Start, Study, StudyCell, command
from research.kept import (
    SUCCESS,
    Kept,
    caveats,
    condense,
    last_success,
    not_worse,
    of_content,
    parsed,
    read,
    validated_by_seed,
)
from research.kept import start as first_success
from research.made_to_collapse import GENTLE, GENTLE_STEP_S, OFTEN, STEP_S
from squelch.cluster.errors import UserError
from squelch.cluster.runs.folder import RunFolder
from squelch.cluster.sweep.table import t_interval, text

SEEDS = (0, 1, 2)
COLLAPSE_STEPS, RESCUE_STEPS = 60, 40
MEANS = "entropy0.2"
TOLERANCE = 0.05
FALLS = ("probe_falling", "input_dependence_falling")
"""Events of the alarms that see a fall."""
COMMON = (
    *("validation.tasks=256", "validation.every=10", "recorder.report=false", "recorder.port=0"),
    *("scorer.every=10", "loop.checkpoint_every=2", "loop.keep_checkpoints=1"),
)
RESCUE: Mapping[str, Any] = {"scorer.probe.every": 10}


def first_alarm(folder: Path) -> Mapping[str, Any] | None:
    """The event of a run's first alarm that sees a fall; None if there was none."""
    return next((event for event in RunFolder(folder).events() if event["name"] in FALLS), None)


def named(folder: Path) -> int:
    """The step of the checkpoint that the run's first alarm named; 0 if it named none, because only the beginning is
    from before the fall. NothingToStart if there was no alarm."""
    alarm = first_alarm(folder)
    if alarm is None:
        raise NothingToStart(f"{folder}: no alarm saw a fall, so none named a checkpoint")
    return alarm["checkpoint"] or 0


def best(folder: Path) -> int:
    """The step of the best validation. NothingToStart if the alarm named the same checkpoint."""
    step = _of_summary(folder)["success"]["best_step"]
    alarm = first_alarm(folder)
    if alarm is not None and alarm["checkpoint"] == step:
        raise NothingToStart(f"{folder}: the alarm named the best checkpoint, of step {step}; `named` stands for both")
    return step


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


def condensed(folder: Path, **labels: Any) -> dict[str, Any]:
    """The content of a cell's file, as `kept.condense`; that of a collapsed run also tells its first alarm."""
    found = condense(folder, **labels)
    if labels["part"] != "collapse":
        return found
    alarm = first_alarm(folder)
    told = None if alarm is None else {key: alarm[key] for key in ("name", "step", "checkpoint")}
    return {**found, "first_alarm": told}


RESULTS = Path(__file__).parent / "results" / "rescue"
STUDY = Study("rescue", COMMON, tuple(every_cell()), RESULTS, condensed)


@dataclass(frozen=True)
class Collapsed:
    """A collapsed run and its first alarm, as `condensed` tells it; None without one."""

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
    places = list(BEGINNINGS)
    return sorted([*rescues, *shared], key=lambda run: (run.seed, places.index(run.arm)))


def _collapsed(content: Mapping[str, Any]) -> Collapsed:
    return Collapsed(of_content(content), content["first_alarm"])


def committed() -> tuple[list[Collapsed], list[Kept]]:
    """The collapsed runs and the rescues, as far as they are done. UserError if a file is damaged."""
    files = [(cell.part, STUDY.file(cell)) for cell in STUDY.cells if STUDY.is_done(cell)]
    collapsed = [parsed(file, _collapsed) for part, file in files if part == "collapse"]
    return collapsed, [read(file) for part, file in files if part == "rescue"]


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
    """Judges the committed files."""
    collapsed, rescues = committed()
    figures = measure(collapsed, rescues)
    runs = [*(one.run for one in collapsed), *rescues]
    told = [*notes(figures), *caveats(runs)]
    return Report(figures, COLUMNS, rows(figures), told)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one of the forms of the command; returns the exit code."""
    return command(__doc__, lambda: STUDY, report, argv)


if __name__ == "__main__":
    raise SystemExit(main())
