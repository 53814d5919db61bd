"""The study of the kept share that sets itself: the controller against the best fixed rho, seed by seed.

python -m research.kept_share --list [--only WORD ...]
python -m research.kept_share --run [--only WORD ...] [--minutes N] [--parallel N]
    [--runs-dir DIR] [--set KEY=VALUE ...]
python -m research.kept_share [--quick] [--json]

Everything here was fixed before the first cell ran; do not change it once a cell has.

    environments   frozenlake, countdown, sokoban: the recipes of the tiny policy, with their own numbers of steps
    grid           the filter's rho fixed at 0.5, 0.7, 0.9 or 1, seeds 10 and 11
    best fixed     the rho of the grid with the highest mean success over its seeds; of equal ones the nearest to 0.9
    fresh          the best fixed rho, and the controller (start 0.9, bounds 0.5 and 1, q every 2 steps, floor of 2
                   groups, error 0.05), seeds 20 to 24
    success        on 256 fixed validation tasks after the last step
    figure         the controller's success minus that of the best fixed rho, paired by seed: mean and 95% t-interval
    criterion      the controller is not worse by more than 0.05 on FrozenLake and Countdown, 0.08 on Sokoban. It holds
                   if the interval's lower end is above minus the tolerance, it fails if the upper end is below that,
                   and otherwise it cannot be told from five seeds

`--list` and `--run` are those of `research.claims`. The cells of an environment's best fixed rho join the list once
its grid is done, so the command is called again then. Without either form the committed files are judged, `--quick`
alike; nothing is run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from research.cells import Report, Study, StudyCell, command
from research.claims.plan import STEP_S
from research.kept import (
    Kept,
    apart,
    caveats,
    last_success,
    not_worse,
    read_all,
    validated_by_seed,
)
from squelch.cluster.sweep.table import t_interval, text

RESULTS = Path(__file__).parent / "results" / "kept_share"
TOLERANCES = {"frozenlake": 0.05, "countdown": 0.05, "sokoban": 0.08}
STEPS = {"frozenlake": 60, "countdown": 40, "sokoban": 45}
GRID = (0.5, 0.7, 0.9, 1.0)
GRID_SEEDS, FRESH_SEEDS = (10, 11), (20, 21, 22, 23, 24)
START = 0.9
CONTROLLER: Mapping[str, Any] = {
    "filter.rho": START,
    "filter.min_groups": 2,
    "filter.kept_share.every": 2,
    "filter.kept_share.steer": True,
    "filter.kept_share.low": 0.5,
    "filter.kept_share.high": 1.0,
    "filter.kept_share.error": 0.05,
}
AUTO = "auto"
RHO = "kept_share/rho"
TASKS = 256
COMMON = (
    *(f"validation.tasks={TASKS}", "scorer.enabled=false", "recorder.report=false", "recorder.port=0"),
    *("loop.checkpoint_every=30", "loop.keep_checkpoints=1"),
)


def fixed(rho: float) -> str:
    """The arm of a fixed rho."""
    return f"rho{rho:g}"


def every_cell(found: Sequence[Kept]) -> Iterator[StudyCell]:
    """The cells that are known, environment by environment. `found`: the runs that are done, from which the best fixed
    rho is read."""
    for environment in TOLERANCES:
        rhos = {fixed(rho): {"filter.rho": rho} for rho in GRID}
        yield from _cells("grid", environment, rhos, GRID_SEEDS)
        best = best_fixed(found, environment)
        against = {} if best is None else {fixed(best): rhos[fixed(best)]}
        yield from _cells("fresh", environment, {**against, AUTO: CONTROLLER}, FRESH_SEEDS)


def _cells(
    part: str, environment: str, arms: Mapping[str, Mapping[str, Any]], seeds: Sequence[int]
) -> Iterator[StudyCell]:
    for seed in seeds:
        for arm, settings in arms.items():
            yield StudyCell(part, environment, arm, settings, seed, STEPS[environment], STEP_S[environment])


def study() -> Study:
    """The study as far as its cells are known."""
    return Study("kept-share", COMMON, tuple(every_cell(committed())), RESULTS)


def committed() -> list[Kept]:
    """The runs that are done."""
    return read_all(RESULTS)


def validated(found: Sequence[Kept], environment: str, arm: str, seeds: Sequence[int]) -> dict[int, Kept]:
    """An arm's runs by seed, without those that lack validations."""
    own = (run for run in found if (run.recipe, run.arm) == (environment, arm))
    return validated_by_seed(own, seeds)


def best_fixed(found: Sequence[Kept], environment: str) -> float | None:
    """The grid's best rho; None if a cell of the grid is missing. It compares numbers of solved tasks, because the
    shares in the files are rounded, and sums of equal ones would differ."""
    solved = {}
    for rho in GRID:
        known = validated(found, environment, fixed(rho), GRID_SEEDS)
        if len(known) < len(GRID_SEEDS):
            return None
        solved[rho] = sum(round(TASKS * last_success(run)) for run in known.values())
    return max(solved, key=lambda rho: (solved[rho], -abs(rho - START)))


def judged(found: Sequence[Kept], environment: str) -> dict[str, Any]:
    """The figure and the verdict on one environment: holds, fails, cannot be told, or not run."""
    best, tolerance = best_fixed(found, environment), TOLERANCES[environment]
    row: dict[str, Any] = {"environment": environment, "tolerance": tolerance, "best": best, "verdict": "not run"}
    if best is None:
        return row
    auto, other = (validated(found, environment, arm, FRESH_SEEDS) for arm in (AUTO, fixed(best)))
    seeds = sorted(auto.keys() & other.keys())
    pairs = [(auto[seed], other[seed]) for seed in seeds]
    figure = t_interval([last_success(steered) - last_success(still) for steered, still in pairs])
    means = {
        name: t_interval([last_success(run) for run in own.values()])
        for name, own in (("auto", auto), ("fixed", other))
    }
    missing = [seed for seed in FRESH_SEEDS if seed not in seeds]
    verdict = "not run" if missing else not_worse(figure["low"], figure["high"], tolerance)
    steered = [run.series(RHO) for run in found if (run.recipe, run.arm) == (environment, AUTO)]
    moved = [list(series.values())[-1] for series in steered if series]
    row |= {"difference": figure, "missing": missing, "last_rho": moved, "verdict": verdict, "note": apart(pairs)}
    return row | means


COLUMNS = (
    "environment",
    "best fixed rho",
    "its success",
    "controller's",
    "difference",
    "tolerance",
    "last rho",
    "verdict",
)


def cells(row: Mapping[str, Any]) -> list[Any]:
    """The printed cells of one environment."""
    if "difference" not in row:
        return [row["environment"], "-", "-", "-", "-", row["tolerance"], "-", row["verdict"]]
    texts = [text(row["fixed"]), text(row["auto"]), text(row["difference"], "+")]
    last = ", ".join(f"{rho:g}" for rho in row["last_rho"]) or "-"
    return [row["environment"], f"{row['best']:g}", *texts, row["tolerance"], last, row["verdict"]]


def report(quick: bool = False) -> Report:
    """Judges the committed files."""
    found = committed()
    judgements = [judged(found, name) for name in TOLERANCES]
    notes = caveats(found) if found else ["no run was kept yet"]
    notes += [f"{row['environment']}: {row['note']}" for row in judgements if row.get("note")]
    figures = {"benchmark": "kept_share_study", "rows": judgements}
    return Report(figures, COLUMNS, [cells(row) for row in judgements], notes)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one of the forms of the command; returns the exit code."""
    return command(__doc__, study, report, argv)


if __name__ == "__main__":
    raise SystemExit(main())
