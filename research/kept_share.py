"""The study of the kept share that sets itself: the controller against the best fixed rho, seed by seed.

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

The controller was taken out of the product afterwards; the runs are those of research/results/kept_share.parquet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from research.judging import Report, judge
from research.kept import (
    Kept,
    apart,
    caveats,
    last_success,
    not_worse,
    read_all,
    validated_by_seed,
)
from research.tables import FOLDER
from squelch.cluster.sweep.table import t_interval, text

RESULTS = FOLDER / "kept_share.parquet"
TOLERANCES = {"frozenlake": 0.05, "countdown": 0.05, "sokoban": 0.08}
STEPS = {"frozenlake": 60, "countdown": 40, "sokoban": 45}
GRID = (0.5, 0.7, 0.9, 1.0)
GRID_SEEDS, FRESH_SEEDS = (10, 11), (20, 21, 22, 23, 24)
START = 0.9
AUTO = "auto"
RHO = "kept_share/rho"
TASKS = 256


def fixed(rho: float) -> str:
    """The arm of a fixed rho."""
    return f"rho{rho:g}"


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
    """Judges the table."""
    found = committed()
    judgements = [judged(found, name) for name in TOLERANCES]
    notes = caveats(found) if found else ["no run was kept yet"]
    notes += [f"{row['environment']}: {row['note']}" for row in judgements if row.get("note")]
    figures = {"benchmark": "kept_share_study", "rows": judgements}
    return Report(figures, COLUMNS, [cells(row) for row in judgements], notes)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the verdicts; returns the exit code."""
    return judge(__doc__, report, argv)


if __name__ == "__main__":
    raise SystemExit(main())
