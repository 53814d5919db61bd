"""Long runs at a constant learning rate: what the filter changes where the policy goes on moving for 300 steps.

python -m research.constant_rate --list
python -m research.constant_rate --run [--only WORD ...] [--minutes N] [--parallel N]
    [--runs-dir DIR] [--set KEY=VALUE ...]
python -m research.constant_rate --import FILE ...
python -m research.constant_rate [--quick] [--json]

`--run` adds each finished cell to research/results/constant_rate.parquet; commit it. `--import` adds condensed runs
that another checkout left as JSON files, the pilots first.

The long runs of `research.claims` keep the recipes' decay: a tenth of the rate from step 42 (Sokoban) or 55
(FrozenLake). These runs do not decay. Everything here was fixed before the first cell ran; do not change it once a cell
has.

    pilot          one unfiltered GRPO run of 60 steps at 2e-4, 1e-4 and 5e-5, seed 90, which no arm uses. The rate of
                   an environment is the largest at which the last validation success is within 0.05 of the best of that
                   run; if none is, the smallest. The pilot is not judged, and a smaller rate is not run once one is
                   found
    arms           no filter and top-p 0.9 (absolute epsilon 0.01, the paper's), each under GRPO (sequence_mean) and PPO
                   (token_mean, critic rate 5e-4); FrozenLake under GRPO alone. 300 steps, seeds 10 to 12. Each seed has
                   its own warm-up and tasks, which its arms share. No arm stops early
    success        on the fixed validation tasks, every 30 steps; at the end, and the largest (the peak)
    late change    success at step 300 minus success at step 90, within one run
    MI             of the fixed probe (every 60 steps); its change from before training to step 300
    metrics        means over seeds with 95% t-intervals, and top-p minus no filter, paired by seed
    criteria       the filter raises success at the end (paired difference above 0); without the filter success falls
                   late (late change below 0), and MI degrades (change below 0). Holds if the whole interval is on the
                   claimed side, fails if it is on the other side, else it is not significant. A run is unstable, by the
                   paper's rule, if its success was ever below 0.01
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from research.cells import Study, StudyCell, command
from research.judging import Report
from research.kept import SUCCESS, Kept, apart, caveats, last_success, read_all
from research.tables import FOLDER
from squelch.cluster.sweep.table import t_interval, text

Settings = Mapping[str, Any]
RESULTS = FOLDER / "constant_rate.parquet"
STEP_S: Mapping[str, float] = {"sokoban": 5.2, "frozenlake": 2.6}
"""Expected seconds of a step on two idle cores (Zen 4), validation, scoring and the probe included."""
RATES = (2e-4, 1e-4, 5e-5)
PILOT_STEPS, PILOT_SEED, PILOT_TOLERANCE = 60, 90, 0.05
STEPS, SEEDS = 300, (10, 11, 12)
LATE_FROM = 90
UNSTABLE = 0.01
COMMON = (
    *("recorder.report=false", "recorder.port=0", "scorer.every=10", "scorer.probe.every=60", "validation.every=30"),
    *("loop.checkpoint_every=30", "loop.keep_checkpoints=1"),
    "filter.no_signal_limit=1000",
    *("learner.objective.entropy_coefficient=0.001", "learner.optimizer.decay_steps=0"),
)
AGGREGATION = "learner.objective.aggregation"
ALGORITHMS: Mapping[str, Settings] = {
    "grpo": {AGGREGATION: "sequence_mean"},
    "ppo": {"learner.algorithm": "ppo", "learner.critic.learning_rate": 5e-4, AGGREGATION: "token_mean"},
}
NONE: Settings = {"filter.rule": "none"}
TOP_P: Settings = {
    "filter.rule": "top_p",
    "filter.rho": 0.9,
    "filter.epsilon": 0.01,
    "filter.epsilon_unit": "absolute",
}
FILTERS: Mapping[str, Settings] = {"none": NONE, "top_p": TOP_P}
RATE = "learner.optimizer.learning_rate"
ENVIRONMENTS: Mapping[str, Sequence[str]] = {"sokoban": ("grpo", "ppo"), "frozenlake": ("grpo",)}


def pilot_cell(recipe: str, rate: float) -> StudyCell:
    """The pilot of an environment at a rate."""
    settings = {**NONE, **ALGORITHMS["grpo"], RATE: rate}
    often = {"validation.every": 10}
    return StudyCell("pilot", recipe, f"rate{rate:g}", settings, PILOT_SEED, PILOT_STEPS, STEP_S[recipe], often)


def rate_of(recipe: str, results: Path = RESULTS) -> float | None:
    """The learning rate of an environment's arms by its pilots; None while too few of them are done."""
    done = {run.name: run for run in read_all(results)}
    for rate in RATES:
        run = done.get(pilot_cell(recipe, rate).name)
        if run is None:
            return None
        success = run.series(SUCCESS)
        if success[max(success)] >= max(success.values()) - PILOT_TOLERANCE:
            return rate
    return RATES[-1]


def pilots(recipe: str) -> Iterator[StudyCell]:
    """The pilots of an environment that are done, and the next that its rule asks for."""
    done = {run.name for run in read_all(RESULTS)}
    for cell, rate in ((pilot_cell(recipe, rate), rate) for rate in RATES):
        yield cell
        if cell.name not in done or rate == rate_of(recipe):
            return


def arms(recipe: str, rate: float) -> Iterator[StudyCell]:
    """The cells of an environment: seed by seed, every algorithm without and with the filter."""
    for seed in SEEDS:
        for algorithm in ENVIRONMENTS[recipe]:
            for name, chosen in FILTERS.items():
                settings = {**chosen, **ALGORITHMS[algorithm], RATE: rate, "model.tiny_seed": seed}
                yield StudyCell("long", recipe, f"{algorithm}_{name}", settings, seed, STEPS, STEP_S[recipe])


def every_cell() -> Iterator[StudyCell]:
    """The cells that can be run now: those of an environment's arms once its pilot is done."""
    for recipe in ENVIRONMENTS:
        yield from pilots(recipe)
        rate = rate_of(recipe)
        if rate is not None:
            yield from arms(recipe, rate)


def study() -> Study:
    """The study with the cells that can be run now."""
    return Study("constant_rate", COMMON, tuple(every_cell()), RESULTS)


def late_change(run: Kept) -> float | None:
    """Success at the last step minus success at step `LATE_FROM`."""
    at = run.series(SUCCESS).get(LATE_FROM)
    return None if at is None else last_success(run) - at


def mi_change(run: Kept) -> float | None:
    """MI of the probe at the last step minus MI before training, nats."""
    mi = run.series("probe/mi")
    return mi[max(mi)] - mi[min(mi)] if len(mi) > 1 else None


MEASURES = {
    "success": last_success,
    "peak": lambda run: max(run.series(SUCCESS).values()),
    "late_change": late_change,
    "mi_change": mi_change,
}


def interval(values: Sequence[float | None]) -> dict[str, Any]:
    """Mean and interval over seeds of the values that are known."""
    return dict(t_interval([value for value in values if value is not None]))


def row(runs: Mapping[tuple[str, int], Kept], recipe: str, algorithm: str, name: str) -> dict[str, Any]:
    """The metrics of one arm and, with the filter, its differences from the arm without it."""
    own = {seed: runs[key] for seed in SEEDS if (key := (f"{recipe}-{algorithm}_{name}", seed)) in runs}
    none = {seed: runs[key] for seed in own if (key := (f"{recipe}-{algorithm}_none", seed)) in runs}
    found: dict[str, Any] = {"recipe": recipe, "algorithm": algorithm, "filter": name, "seeds": len(own)}
    for key, measure in MEASURES.items():
        found[key] = interval([measure(run) for run in own.values()])
    found["unstable"] = sum(min(run.series(SUCCESS).values()) < UNSTABLE for run in own.values())
    paired = [last_success(own[seed]) - last_success(none[seed]) for seed in none] if name != "none" else []
    found["minus_none"] = interval(paired)
    found["note"] = apart([(own[seed], none[seed]) for seed in none])
    return found


def verdict(found: Mapping[str, Any], wanted: int, above: bool = True) -> str:
    """`holds` if the interval lies above 0 (below it unless `above`), `fails` if on the other side, and how many of the
    wanted seeds it is over; the number alone before all are there."""
    low, high, counted = found["low"], found["high"], f"{found['n']} of {wanted} seeds"
    if found["n"] < wanted:
        return counted
    if low <= 0 <= high:
        return f"not significant, {counted}"
    return f"{'holds' if (low > 0) == above else 'fails'}, {counted}"


COLUMNS = ("environment", "algorithm", "filter", "seeds", "success", "peak", "late change", "MI change", "unstable")
COLUMNS += ("minus none",)


def report(quick: bool = False) -> Report:
    """Judges the table."""
    found_runs = read_all(RESULTS)
    runs = {(f"{run.recipe}-{run.arm}", run.seed): run for run in found_runs if run.part == "long"}
    rows, notes = [], []
    for recipe, algorithms in ENVIRONMENTS.items():
        rate = rate_of(recipe)
        notes.append(f"{recipe}: " + ("the pilot is not done" if rate is None else f"rate {rate:g} by the pilot"))
        rows += [row(runs, recipe, algorithm, name) for algorithm in algorithms for name in FILTERS]
    for one in rows:
        where, wanted = f"{one['recipe']}, {one['algorithm']}", len(SEEDS)
        if one["filter"] == "none":
            late, mi = (verdict(one[key], wanted, above=False) for key in ("late_change", "mi_change"))
            notes += [f"{where}: success falls late without the filter: {late}"]
            notes += [f"{where}: MI degrades without the filter: {mi}"]
        else:
            notes.append(f"{where}: the filter raises success: {verdict(one['minus_none'], wanted)}")
        if one["note"]:
            notes.append(f"{where}: {one['note']}")
    notes += caveats(found_runs)
    return Report({"benchmark": "constant_rate", "rows": rows}, COLUMNS, [cells(one) for one in rows], notes)


def cells(found: Mapping[str, Any]) -> list[str]:
    """The printed cells of a row."""
    labels = [found["recipe"], found["algorithm"], found["filter"], str(found["seeds"])]
    levels = [text(found["success"]), text(found["peak"])]
    changes = [text(found["late_change"], "+"), text(found["mi_change"], "+")]
    return [*labels, *levels, *changes, str(found["unstable"]), text(found["minus_none"], "+")]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one of the forms of the command; returns the exit code."""
    return command(__doc__, study, report, argv)


if __name__ == "__main__":
    raise SystemExit(main())
