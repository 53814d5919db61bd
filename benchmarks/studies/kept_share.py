"""The study of the kept share that sets itself: the controller against the best fixed rho, seed by seed.

python -m benchmarks.studies.kept_share --run grid ENV ... [--runs-dir DIR] [--set KEY=VALUE ...]
python -m benchmarks.studies.kept_share --run fresh ENV ... [--runs-dir DIR] [--set KEY=VALUE ...]
python -m benchmarks.studies.kept_share --keep DIR ...
python -m benchmarks.studies.kept_share [--quick] [--json]

Everything here was fixed before the first cell ran; do not change it once a cell has.

    environments   frozenlake, countdown, sokoban: the recipes of the tiny policy, with their own numbers of steps
    grid           the filter's rho fixed at 0.5, 0.7, 0.9 or 1, seeds 10 and 11
    best fixed     the rho of the grid with the highest mean success over its seeds; of equal ones the nearest to 0.9
    fresh          the best fixed rho, and the controller (start 0.9, bounds 0.5 and 1, q every 2 steps, floor of 2
                   groups, error 0.05), seeds 20 to 24
    success        on 256 fixed validation tasks after the last step
    figure         the controller's success minus that of the best fixed rho, paired by seed: mean and 95% t-interval
    criterion      the controller is not worse by more than 0.05 on FrozenLake and Countdown, 0.08 on Sokoban. It holds
                   if the interval's lower end is at least minus the tolerance, it fails if the upper end is below that,
                   and otherwise it cannot be told from five seeds

A cell is a run of about five minutes on two idle cores: 24 cells of the grid, 30 fresh ones. `--run` sweeps the cells
and goes on where it was interrupted; `fresh` reads the best fixed rho from the committed figures of the grid and is
refused without them. `--keep` condenses finished runs into one small file each under
`benchmarks/studies/results/kept_share`. Without either the committed files are judged, `--quick` alike; nothing is run.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import print_figures
from benchmarks.studies.kept import finished, write_plain
from cluster.errors import UserError
from cluster.sweep.plan import Arm, make_plan
from cluster.sweep.table import t_interval, text

RESULTS = Path(__file__).parent / "results" / "kept_share"
TOLERANCES = {"frozenlake": 0.05, "countdown": 0.05, "sokoban": 0.08}
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
COURSE = {
    "reward_variance_mean": "reward_variance_mean",
    "kept_mass": "kept_mass",
    "success": "validation/success",
}
COMMON = ("validation.tasks=256", "scorer.enabled=false")
Kept = Mapping[str, Any]


def fixed(rho: float) -> Arm:
    """The arm of a fixed rho."""
    return Arm(f"rho{rho:g}", {"filter.rho": rho})


def arms_of(stage: str, environment: str, found: Sequence[Kept]) -> tuple[list[Arm], tuple[int, ...]]:
    """The arms and seeds of a stage. UserError for `fresh` if the committed figures of the grid are not whole."""
    if stage == "grid":
        return [fixed(rho) for rho in GRID], GRID_SEEDS
    best = best_fixed(found, environment)
    if best is None:
        raise UserError(
            f"{environment}: the best fixed rho is not known; run `--run grid {environment}` and `--keep` its cells "
            "first"
        )
    return [fixed(best), Arm(AUTO, dict(CONTROLLER))], FRESH_SEEDS


def run_stage(stage: str, environment: str, runs_dir: str, words: Sequence[str]) -> int:
    """Sweeps a stage on one environment; returns the sweep's exit code."""
    from cluster.sweep.cells import execute

    arms, seeds = arms_of(stage, environment, committed())
    overrides = [f"runs_dir={json.dumps(runs_dir)}", *COMMON, *words]
    by_label = {arm.label: list(seeds) for arm in arms}
    plan = make_plan(environment, overrides, arms, by_label, name=f"kept-{stage}-{environment}", parallel=1)
    return execute(plan, 1)


def keep(folder: Path) -> Path:
    """Writes what the report needs of a finished run; returns the file."""
    run, summary = finished(folder)
    settings = run.settings()
    rows = run.metrics()
    validated = [row["validation/success"] for row in rows if row.get("validation/success") is not None]
    found = {
        "run": f"{folder.parent.name}/{folder.name}",
        "environment": settings["environment.name"].lower(),
        "arm": AUTO if settings["filter.kept_share.steer"] else fixed(settings["filter.rho"]).label,
        "seed": settings["seed"],
        "steps": summary["steps"],
        "success": validated[-1],
        "before": validated[0],
        "kept_fraction": _mean(rows, "kept_fraction"),
        "seconds": _mean(rows, "seconds/step"),
        "seconds_measuring": _mean(rows, "seconds/kept_share"),
        "course": [_course(row) for row in rows],
        "rho": [row["kept_share/rho"] for row in rows if row.get("kept_share/rho") is not None],
        "q": [_q(row) for row in rows if row.get("kept_share/measured") is not None],
    }
    return write_plain(RESULTS / f"{folder.parent.name}-{folder.name}.json", found)


def _course(row: Kept) -> dict[str, float]:
    """The figures from which `benchmarks.gaming` judges the warning for a gamed criterion."""
    kept = {name: row[key] for name, key in COURSE.items() if row.get(key) is not None}
    return {"step": row["step"]} | {name: round(value, 5) for name, value in kept.items()}


def _q(row: Kept) -> dict[str, float]:
    """One measurement: the step, and q by rho."""
    found = {key.rpartition("/")[2]: value for key, value in row.items() if key.startswith("kept_share/q/")}
    return {"step": row["step"]} | {rho: float(f"{value:.4g}") for rho, value in found.items()}


def _mean(rows: Sequence[Kept], key: str) -> float | None:
    known = [row[key] for row in rows if row.get(key) is not None]
    return round(sum(known) / len(known), 4) if known else None


def committed() -> list[Kept]:
    """The condensed runs, in order of their names."""
    return [json.loads(file.read_text()) for file in sorted(RESULTS.glob("*.json"))]


def by_seed(found: Sequence[Kept], environment: str, arm: str, seeds: Sequence[int]) -> dict[int, float]:
    """Success of an arm's runs, by seed."""
    own = (one for one in found if (one["environment"], one["arm"]) == (environment, arm))
    return {one["seed"]: one["success"] for one in own if one["seed"] in seeds}


def best_fixed(found: Sequence[Kept], environment: str) -> float | None:
    """The grid's best rho; None if a cell of the grid is missing."""
    means = {}
    for rho in GRID:
        known = by_seed(found, environment, fixed(rho).label, GRID_SEEDS)
        if len(known) < len(GRID_SEEDS):
            return None
        means[rho] = sum(known.values()) / len(known)
    return max(means, key=lambda rho: (means[rho], -abs(rho - START)))


def judged(found: Sequence[Kept], environment: str) -> dict[str, Any]:
    """The figure and the verdict on one environment: holds, fails, cannot be told, or not run."""
    best, tolerance = best_fixed(found, environment), TOLERANCES[environment]
    row: dict[str, Any] = {"environment": environment, "tolerance": tolerance, "best": best, "verdict": "not run"}
    if best is None:
        return row
    auto = by_seed(found, environment, AUTO, FRESH_SEEDS)
    other = by_seed(found, environment, fixed(best).label, FRESH_SEEDS)
    seeds = sorted(auto.keys() & other.keys())
    figure = t_interval([auto[seed] - other[seed] for seed in seeds])
    means = {"auto": t_interval(list(auto.values())), "fixed": t_interval(list(other.values()))}
    missing = [seed for seed in FRESH_SEEDS if seed not in seeds]
    verdict = "not run" if missing else verdict_of(figure["low"], figure["high"], tolerance)
    moved = [one["rho"][-1] for one in found if one["environment"] == environment and one["arm"] == AUTO and one["rho"]]
    return row | means | {"difference": figure, "missing": missing, "last_rho": moved, "verdict": verdict}


def verdict_of(low: Any, high: Any, tolerance: float) -> str:
    """The criterion of the module's head on an interval of the difference."""
    if low is None or high is None:
        return "cannot be told"
    return "holds" if low >= -tolerance else "fails" if high < -tolerance else "cannot be told"


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


def main() -> int:
    """Runs one of the forms of the command; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", nargs="+", metavar="STAGE ENV", help="grid or fresh, then environments to sweep")
    parser.add_argument("--keep", nargs="+", type=Path, metavar="DIR", help="condense these finished runs")
    parser.add_argument("--runs-dir", default="runs", help="run: folder of the sweeps")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="run: further settings")
    parser.add_argument("--quick", action="store_true", help="judge the committed figures, as without it")
    parser.add_argument("--json", action="store_true", help="report: one JSON object instead of the table")
    chosen = parser.parse_args()
    try:
        if chosen.run:
            stage, *environments = chosen.run
            if stage not in ("grid", "fresh") or not environments or not set(environments) <= set(TOLERANCES):
                parser.error(f"--run: give grid or fresh, then environments of {', '.join(TOLERANCES)}")
            return max(run_stage(stage, name, chosen.runs_dir, chosen.set) for name in environments)
        for folder in chosen.keep or []:
            print(keep(folder))
    except (UserError, ValueError) as error:
        parser.error(str(error))
    if not chosen.keep:
        found = committed()
        rows = [judged(found, name) for name in TOLERANCES]
        notes = [] if found else ["no run was kept yet"]
        print_figures(
            {"benchmark": "kept_share_study", "rows": rows}, chosen.json, COLUMNS, [cells(row) for row in rows], notes
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
