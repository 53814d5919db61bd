"""Reads the run folders of the collapse study, groups them into arms, and averages over seeds. Pure; reads only files.

A run's arm is defined by its config.yaml (filter, entropy, KL), not by its folder's name. Runs of an older version may
lack figures: an arm has a figure if every run of it has the figure, and `missing` names the others.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from squelch.actors.archive.reader import read_metrics
from squelch.actors.diagnosis.grounding import spearman
from squelch.cluster.sweep.plan import is_finished
from squelch.cluster.sweep.table import t_interval

Series = dict[int, float]
SCORED = {"mi": "first_turn/mi_est", "entropy": "first_turn/conditional_entropy", "judge": "judge/right"}
"""Figures of a scoring, which belong to the scored step."""
TITLES = {
    "mi": "MI-Est, first turn, nats per token",
    "entropy": "H(Z|X), first turn, nats per token",
    "success": "success on the validation tasks",
    "judge": "reasonings that name true coordinates",
    "alarm": "share of runs with the alarm raised",
}
ENDS = 3
"""Number of scorings that are averaged at a run's beginning and at its end."""
IGNORED = ("seed", "name", "runs_dir", "cluster", "recorder", "validation", "scorer", "filter.rule", "filter.rho")
ARM_KEYS = ("learner.objective.entropy_coefficient", "learner.objective.kl.coefficient")
TASK_SEEDS = ("environment.train_seed", "environment.validation_seed")


@dataclass(frozen=True)
class Arm:
    """The settings that the study varies."""

    environment: str
    filter: str
    entropy: float
    kl: float

    @property
    def label(self) -> str:
        """The arm's name in tables and figures."""
        return f"{self.filter}, entropy {self.entropy:g}, KL {self.kl:g}"


@dataclass(frozen=True)
class Run:
    """One run folder. `series`: for each name of TITLES, the figure by step; empty if it was not recorded."""

    folder: str
    arm: Arm
    seed: int
    steps: int
    asked_steps: int
    series: Mapping[str, Series]
    settings: Mapping[str, Any]
    finished: bool
    """Whether the run reached its last step or an early stop."""


def find_runs(folders: Sequence[Path]) -> list[Run]:
    """Every run at or below the folders, ordered by name. ValueError if there is none."""
    found = sorted({path.parent for folder in folders for path in folder.glob("**/metrics.jsonl")})
    runs = [read_run(folder) for folder in found if (folder / "config.yaml").is_file()]
    if not runs:
        places = ", ".join(map(str, folders))
        raise ValueError(f"{places}: no run there; a run's folder holds config.yaml and metrics.jsonl")
    return runs


def read_run(folder: Path) -> Run:
    """Reads a run in its present state. Its config.yaml is read as plain data, so that older versions are read too."""
    config = yaml.safe_load((folder / "config.yaml").read_text())
    try:
        rule, rho = config["filter"]["rule"], config["filter"]["rho"]
        objective = config["learner"]["objective"]
        arm = Arm(
            config["environment"]["name"],
            "no filter" if rule == "none" else f"{rule} {rho:g}",
            float(objective["entropy_coefficient"]),
            float(objective["kl"]["coefficient"]),
        )
        seed, asked = int(config["seed"]), int(config["loop"]["steps"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"{folder}/config.yaml is no resolved configuration of a run: {error} is missing") from error
    lines = read_metrics(folder)
    steps = max((int(line["step"]) for line in lines), default=0)
    over = steps >= asked or is_finished(folder)
    return Run(folder.name, arm, seed, steps, asked, series_of(lines), flat(config), over)


def series_of(lines: Sequence[Mapping[str, Any]]) -> dict[str, Series]:
    """The figures of TITLES by step."""
    found: dict[str, Series] = {name: {} for name in TITLES}
    for line in lines:
        scored = line.get("scorer/step")
        at = int(line["step"] if scored is None else scored)
        for name, key in SCORED.items():
            if line.get(key) is not None:
                found[name][at] = float(line[key])
        if line.get("validation/success") is not None:
            found["success"][int(line["validation/step"])] = float(line["validation/success"])
        if line.get("alarm/raised") is not None:
            found["alarm"][int(line["step"])] = float(line["alarm/raised"])
    return found


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The tree's values by dotted key."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def by_arm(runs: Iterable[Run]) -> dict[Arm, list[Run]]:
    """The runs of each arm, ordered by seed; of two runs with one seed the longer. Arms are in a fixed order."""
    longest: dict[tuple[Arm, int], Run] = {}
    for run in runs:
        key = (run.arm, run.seed)
        if key not in longest or run.steps > longest[key].steps:
            longest[key] = run
    arms: dict[Arm, list[Run]] = {}
    order = sorted(longest, key=lambda k: (k[0].environment, k[0].kl, k[0].entropy, k[0].filter, k[1]))
    for arm, seed in order:
        arms.setdefault(arm, []).append(longest[arm, seed])
    return arms


def figures_of(run: Run) -> dict[str, float]:
    """The figures of a run's row, without those that it did not record."""
    found: dict[str, float] = {}
    for name in SCORED:
        values = [value for _, value in sorted(run.series[name].items())]
        if len(values) >= 2 * ENDS:
            found[f"{name}_first"] = statistics.fmean(values[:ENDS])
            found[f"{name}_last"] = statistics.fmean(values[-ENDS:])
            found[f"{name}_change"] = found[f"{name}_last"] - found[f"{name}_first"]
    if success := sorted(run.series["success"].items()):
        found |= {"success": success[-1][1], "success_best": max(value for _, value in success)}
        found["gain"] = success[-1][1] - success[0][1]
    if alarm := run.series["alarm"]:
        found["alarm"] = float(any(alarm.values()))
    both = sorted(run.series["mi"].keys() & run.series["judge"].keys())
    if len(both) >= 2 * ENDS:
        found["judge_and_mi"] = spearman([run.series["mi"][s] for s in both], [run.series["judge"][s] for s in both])
    return {name: value for name, value in found.items() if value == value}  # NaN: rank correlation of a constant


COLUMNS = {
    "success": "success",
    "gain": "gain",
    "mi_first": "MI first",
    "mi_last": "MI last",
    "mi_change": "MI change",
    "entropy_change": "H(Z\\|X) change",
    "judge_last": "judge last",
    "judge_change": "judge change",
    "judge_and_mi": "judge ~ MI",
    "alarm": "alarm",
}


def arm_rows(arms: Mapping[Arm, Sequence[Run]]) -> list[dict[str, Any]]:
    """One row per arm: means with t-intervals over seeds, and paired differences from the same arm without a filter."""
    rows = []
    for arm, runs in arms.items():
        own = {run.seed: figures_of(run) for run in runs}
        plain = Arm(arm.environment, "no filter", arm.entropy, arm.kl)
        base = {} if plain == arm else {run.seed: figures_of(run) for run in arms.get(plain, ())}
        rows.append(
            {
                "environment": arm.environment,
                "arm": arm.label,
                "seeds": sorted(own),
                "steps": min(run.steps for run in runs),
                "figures": {n: t_interval(_whole(own.values(), n)) for n in COLUMNS},
                "minus_no_filter": {n: t_interval(_paired(base, own, n)) for n in ("success", "mi_last")},
            }
        )
    return rows


def _whole(own: Collection[dict[str, float]], name: str) -> list[float]:
    """A figure of every run of an arm; nothing if one lacks it, so that a mean never leaves a seed out unsaid."""
    found = [figures[name] for figures in own if name in figures]
    return found if len(found) == len(own) else []


def _paired(base: Mapping[int, dict[str, float]], own: Mapping[int, dict[str, float]], name: str) -> list[float]:
    return [own[s][name] - base[s][name] for s in own if s in base and name in own[s] and name in base[s]]


def mean_series(runs: Sequence[Run], name: str) -> list[tuple[int, dict[str, Any]]]:
    """(step, mean with interval) at the steps at which every run that records the figure has a value."""
    known = [run.series[name] for run in runs if run.series[name]]
    steps = sorted(set.intersection(*(set(series) for series in known))) if known else []
    return [(step, t_interval([series[step] for series in known])) for step in steps]


def missing(runs: Sequence[Run]) -> list[str]:
    """Notes on figures that some runs lack, and on settings that differ between runs that are compared."""
    lines = []
    for name, title in TITLES.items():
        if without := [run.folder for run in runs if not run.series[name]]:
            lines.append(f"not recorded ({title}), by an older version or without the scorer: {', '.join(without)}")
    for name in SCORED:
        few = [f"{run.folder} ({len(run.series[name])})" for run in runs if 0 < len(run.series[name]) < 2 * ENDS]
        if few:
            lines.append(f"too few for a first and a last value ({TITLES[name]}; {2 * ENDS} needed): {', '.join(few)}")
    for environment in sorted({run.arm.environment for run in runs}):
        if odd := differing([run for run in runs if run.arm.environment == environment]):
            lines.append(f"{environment}: settings besides the arms differ between these runs: {'; '.join(odd)}")
    return lines


def differing(runs: Sequence[Run]) -> list[str]:
    """`key: value, value` for each setting, other than the arm's and the seed, that differs between runs."""
    keys = sorted(set().union(*(run.settings for run in runs)))
    odd = []
    for key in keys:
        if key in ARM_KEYS + TASK_SEEDS or any(key == i or key.startswith(f"{i}.") for i in IGNORED):
            continue
        values = {json.dumps(run.settings[key]) for run in runs if key in run.settings}
        if len(values) > 1:
            odd.append(f"{key}: {', '.join(sorted(values))}")
    return odd
