"""The tables of a sweep: metrics of each cell, means over seeds with 95% t-intervals, paired differences; and the
columns of the paper's Tables 4 and 5 (`squelch.cluster.runs.peak`). Pure.

An interval is over seeds: it covers the mean over other seeds (tasks, sampling) if metrics of seeds are normally
distributed. One seed gives no interval, and two seeds a wide one (t = 12.7). A paired difference is computed within
each seed, so that the effect of the seed's tasks cancels. Only finished cells count.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from squelch.cluster.config import RunConfig
from squelch.cluster.runs.folder import RunFolder
from squelch.cluster.runs.peak import COLLAPSE, peak_of
from squelch.cluster.runs.status import last_scorer_step
from squelch.cluster.setting_keys import below, flat, unplaced
from squelch.cluster.sweep.plan import PLACEMENT, Plan
from squelch.kit.diagnosis.uncertainty import t_quantile
from squelch.kit.process.terminal import UNKNOWN, aligned, known

Metrics = dict[str, float | None]
INTERVAL = "95% t-interval over seeds"
COLUMNS = {
    "success": "success",
    "gain": "gain",
    "mi_est": "MI-Est",
    "conditional_entropy": "H(Z|X)",
    "retrieval_accuracy": "retrieval",
    "judge_right": "judge",
    "alarm": "alarm",
}
"""Metric of a cell -> its column. `alarm` is 1 if the run ever raised the alarm; its mean is then a share of runs."""
PEAK_COLUMNS = {
    "peak": "peak",
    "peak_step": "step",
    "peak_retrieval": "MI",
    "peak_entropy": "entropy",
    "stable": "stable",
}
"""Metric of a cell -> its column in the table of where success peaks. `stable` is 1 or 0; its mean is a share."""
NAMES = (*COLUMNS, *PEAK_COLUMNS, "success_before", "success_best", "kept_mass", "seconds_per_step", "steps")
OF_THE_FILTER = ("filter", "learner.objective.loss_scale", "learner.algorithm_filter")
"""Settings, and blocks of them, in which a filtered arm may differ from the one that its gain is measured against."""
OF_A_CELL = (*PLACEMENT, "seed", "environment.train_seed", "environment.validation_seed")


def cell_metrics(run_dir: Path) -> Metrics:
    """The metrics of a finished run at its last validation and its last scorer step, and where success peaks; None for
    a metric that is missing."""
    summary, lines = RunFolder(run_dir).summary(), RunFolder(run_dir).metrics()
    if summary is None:
        return {}
    success, reasoning = summary.get("success", {}), summary.get("reasoning", {})
    alarms = [line["alarm/raised"] for line in lines if line.get("alarm/raised") is not None]
    peak = peak_of(lines)
    return {
        "success": success.get("after", {}).get("success"),
        "gain": success.get("gain", {}).get("mean"),
        "mi_est": reasoning.get("mi_est"),
        "conditional_entropy": reasoning.get("conditional_entropy"),
        "retrieval_accuracy": reasoning.get("retrieval_accuracy"),
        "judge_right": last_scorer_step(lines).get("judge/right"),
        "alarm": float(any(alarms)) if alarms else None,
        "peak": peak.success,
        "peak_step": None if peak.step is None else float(peak.step),
        "peak_retrieval": peak.retrieval,
        "peak_entropy": peak.entropy,
        "stable": None if peak.stable is None else float(peak.stable),
        "success_before": success.get("before", {}).get("success"),
        "success_best": success.get("best"),
        "kept_mass": summary.get("kept_mass_mean"),
        "seconds_per_step": summary.get("seconds_per_step_median"),
        "steps": float(summary.get("steps", 0)),
    }


def t_interval(values: Sequence[float], level: float = 0.95) -> dict[str, float | int | None]:
    """Mean, two-sided interval (Student's t, len - 1 degrees of freedom) and count. One value gives no interval;
    without values the mean is None too."""
    count = len(values)
    if count == 0:
        return {"mean": None, "low": None, "high": None, "n": 0}
    mean = statistics.fmean(values)
    if count == 1:
        return {"mean": mean, "low": None, "high": None, "n": 1}
    half = t_quantile((1 + level) / 2, count - 1) * statistics.stdev(values) / math.sqrt(count)
    return {"mean": mean, "low": mean - half, "high": mean + half, "n": count}


def arm_metrics(plan: Plan, cells: Mapping[str, Metrics]) -> list[dict[str, Any]]:
    """One entry per arm: means with intervals over its finished cells, paired differences from the first arm, and
    beside a filter the gain in peak success over the arm without filter and with the same other settings.

    Args:
        cells: the metrics of the finished cells, by name.
    """
    done = [cell for cell in plan.cells if cell.name in cells]
    by_arm = [{cell.seed: cells[cell.name] for cell in done if cell.arm is arm} for arm in plan.arms]
    bases, entries = _unfiltered(plan), list[dict[str, Any]]()
    for arm, own in zip(plan.arms, by_arm, strict=True):
        rows = own.values()
        metrics = {n: t_interval([v for row in rows if (v := row.get(n)) is not None]) for n in NAMES}
        less = {} if arm is plan.arms[0] else {name: t_interval(_paired(by_arm[0], own, name)) for name in COLUMNS}
        asked = sum(cell.arm is arm for cell in plan.cells)
        base = bases.get(arm.label)
        gain = {} if base is None else {"peak": t_interval(_paired(by_arm[base], own, "peak"))}
        entries.append(
            {
                "arm": arm.label,
                "settings": dict(arm.settings),
                "cells": asked,
                "finished": len(own),
                "figures": metrics,
                "minus_first_arm": less,
                "minus_no_filter": gain,
            }
        )
    return entries


def _unfiltered(plan: Plan) -> dict[str, int]:
    """By the label of each filtered arm, the place of the arm without filter and with the same other settings, if there
    is one."""
    configs = {cell.arm.label: cell.config for cell in plan.cells}
    rest = {label: _but_filter(config) for label, config in configs.items()}
    plain = {label for label, config in configs.items() if config.filter.rule == "none"}
    bases = {rest[arm.label]: place for place, arm in enumerate(plan.arms) if arm.label in plain}
    return {label: bases[rest[label]] for label in configs if label not in plain and rest[label] in bases}


def _but_filter(config: RunConfig) -> str:
    """The settings of a cell's arm without those of its filter, as one comparable text."""
    places = (*OF_THE_FILTER, *OF_A_CELL)
    tree = flat(config.model_dump(mode="json"))
    return json.dumps({key: value for key, value in tree.items() if not below(unplaced(key), places)}, sort_keys=True)


def _paired(first: Mapping[int, Metrics], other: Mapping[int, Metrics], name: str) -> list[float]:
    pairs = [(first[seed].get(name), row.get(name)) for seed, row in other.items() if seed in first]
    return [b - a for a, b in pairs if a is not None and b is not None]


def table_lines(arms: Sequence[Mapping[str, Any]]) -> list[str]:
    """The lines of both tables, and notes that define their columns."""
    paired = len(arms) > 1
    head = ["arm", "cells", *COLUMNS.values(), *(["success - first arm"] if paired else [])]
    rows = [head]
    for arm in arms:
        cells = [text(arm["figures"][name]) for name in COLUMNS]
        less = [text(arm["minus_first_arm"]["success"], "+") if arm["minus_first_arm"] else ""] if paired else []
        rows.append([arm["arm"], f"{arm['finished']}/{arm['cells']}", *cells, *less])
    notes = [
        f"mean [{INTERVAL}]; no interval from one seed. success, gain: last validation; MI-Est, H(Z|X) (nats per "
        "token), retrieval: first turn, last scorer step; judge: share of reasonings that name true coordinates; "
        "alarm: share of runs that raised it"
    ]
    if paired:
        notes.append(f"success - first arm: seed by seed, same tasks, against {arms[0]['arm']}")
    return [*aligned(rows), *notes, "", *_peak_lines(arms)]


def _peak_lines(arms: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns of the paper's Tables 4 and 5, and what they mean."""
    rows = [["arm", "peak", "step", "gain", "MI", "entropy", "stable"]]
    for arm in arms:
        gain = arm["minus_no_filter"].get("peak")
        cells = {name: text(arm["figures"][name]) for name in PEAK_COLUMNS}
        cells["peak_step"] = known(arm["figures"]["peak_step"]["mean"], ".0f")
        after = [cells[name] for name in ("peak_retrieval", "peak_entropy", "stable")]
        rows.append([arm["arm"], cells["peak"], cells["peak_step"], text(gain, "+") if gain else "", *after])
    return [
        *aligned(rows),
        "where validation success peaks after step 0. gain: over the arm that differs in the filter alone, seed by "
        "seed; MI: retrieval accuracy of the first turn, entropy: H(Z|X), at the last scorer step up to the peak; "
        f"stable: share of runs whose success was never below {COLLAPSE:g}",
    ]


def text(metric: Mapping[str, Any], sign: str = "") -> str:
    """A metric as text, e.g. `0.676 [0.610, 0.742]`; `n/a` if there is none."""
    if metric["mean"] is None:
        return UNKNOWN
    mean = f"{metric['mean']:{sign}.3f}"
    return mean if metric["low"] is None else f"{mean} [{metric['low']:{sign}.3f}, {metric['high']:{sign}.3f}]"
