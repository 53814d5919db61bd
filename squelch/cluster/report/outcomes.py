"""Figures at the last evaluation: 6 (filtering strategies), 8 (which diagnostic goes with success), 9 (noise)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from squelch.cluster.plots import draw
from squelch.cluster.plots.style import BASELINE, BLUE, INK, PALETTE, VERMILLION
from squelch.cluster.report.points import Row, grouped, last_value, line_of, with_interval
from squelch.cluster.report.runs import Arm, Run, Study, filter_label, label_of
from squelch.cluster.setting_keys import of_each, unplaced
from squelch.kit.diagnosis.grounding import spearman

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUCCESS = "validation/success"
NOISE = "environment.options.slip_rate"
"""The setting of an environment's stochasticity: the probability that an action slips. Of several environments that
have it, the figure shows the mean."""
MI_DIAGNOSTICS = {
    "trajectory/mi_zscore": "MI z-score, trajectory",
    "trajectory/mi_zscore_ema": "MI z-score EMA, trajectory",
    "first_turn/mi_zscore": "MI z-score, first turn",
    "first_turn/mi_zscore_ema": "MI z-score EMA, first turn",
    "trajectory/mi_est": "MI-Est, trajectory",
    "first_turn/mi_est": "MI-Est, first turn",
    "trajectory/mi_seq_est": "MI-Seq-Est, trajectory",
    "first_turn/mi_seq_est": "MI-Seq-Est, first turn",
    "trajectory/retrieval_accuracy": "Retrieval, trajectory",
    "first_turn/retrieval_accuracy": "Retrieval, first turn",
}
OTHER_DIAGNOSTICS = {
    "trajectory/conditional_entropy": "H(Z|X), trajectory",
    "first_turn/conditional_entropy": "H(Z|X), first turn",
    "trajectory/marginal_entropy": "H(Z), trajectory",
    "first_turn/marginal_entropy": "H(Z), first turn",
    "rollout_entropy": "Surprisal of samples",
    "reasoning_length": "Reasoning length",
    "reward_variance_mean": "Reward variance",
    "format_validity": "Format validity",
}
DIAGNOSTICS = MI_DIAGNOSTICS | OTHER_DIAGNOSTICS
MIN_RUNS = 8
"""Fewest runs of an environment over which a rank correlation is stated."""
RESAMPLES = 2000


def filtering(study: Study) -> list[Row]:
    """Figure 6: success at the last validation of each run, by filter, among arms that differ in the filter only."""
    return [
        {"environment": arm.environment, "others": place, "arm": arm.label, "filter": filter_label(arm.settings)}
        | {"seed": run.seed, "success": success}
        for place, family in enumerate(study.families(("filter", "learner.objective.loss_scale")))
        for arm in family
        for run in arm.runs
        if (success := last_value(run, SUCCESS)) is not None
    ]


def draw_filtering(rows: Sequence[Row], study: Study) -> Figure:
    """Figure 6: a panel for each family of arms; a row for each filter."""
    families = grouped(rows, "environment", "others")
    most = max(len({row["arm"] for row in rows if row["others"] == other}) for _, other in families)
    figure, panels = draw.tiled(len(families), 2, height=0.75 + 0.36 * most)
    for panel, ((environment, _), own) in zip(panels, families.items(), strict=True):
        arms = list(dict.fromkeys(row["arm"] for row in own))
        names = _filter_names(own, arms)
        points = [with_interval([row["success"] for row in own if row["arm"] == arm]) for arm in arms]
        colours = [BASELINE if name.startswith("no filter") else BLUE for name in names]
        draw.intervals(panel, names, points, colours)
        draw.percent(panel, "x", whole=False)
        draw.heading(panel, _family_title(study, environment, arms, len(families)), "success at the last validation")
        panel.grid(True, axis="x")
    return draw.finish(figure)


def _filter_names(rows: Sequence[Row], arms: Sequence[str]) -> list[str]:
    names = [next(row["filter"] for row in rows if row["arm"] == arm) for arm in arms]
    return names if len(set(names)) == len(names) else list(arms)


def _family_title(study: Study, environment: str, labels: Sequence[str], families: int) -> str:
    """The environment, and what else the family's arms have in common, if there is more than one family."""
    if families == 1:
        return environment
    arms = {arm.label: arm for arm in study.environments[environment]}
    outside = [_without_filter(arm) for arm in arms.values()]
    common = label_of(_without_filter(arms[labels[0]]), outside)
    return f"{environment}, {common}" if len({str(o) for o in outside}) > 1 else environment


def _without_filter(arm: Arm) -> dict[str, object]:
    return {key: value for key, value in arm.settings.items() if not key.startswith("filter.")}


def correlations(study: Study) -> list[Row]:
    """Figure 8: Spearman's correlation over runs of each diagnostic with success. One pair a run: success at its last
    validation, and the diagnostic's last value up to then. The 95% interval resamples runs. An environment with fewer
    than `MIN_RUNS` such runs has no row.
    """
    rows: list[Row] = []
    for environment, arms in study.environments.items():
        runs = [run for arm in arms for run in arm.runs]
        for key in DIAGNOSTICS:
            pairs = [pair for run in runs if (pair := at_last_evaluation(run, key)) is not None]
            found = spearman([a for a, _ in pairs], [b for _, b in pairs]) if len(pairs) >= MIN_RUNS else math.nan
            if math.isfinite(found):
                low, high = resampled(np.array(pairs))
                own = {"environment": environment, "diagnostic": key, "runs": len(pairs)}
                rows.append(own | {"spearman": found, "low": low, "high": high})
    return rows


def at_last_evaluation(run: Run, key: str) -> tuple[float, float] | None:
    """(diagnostic, success) of a run at its last validation; None if either is missing."""
    success = run.series(SUCCESS)
    if not success:
        return None
    value = last_value(run, key, until=max(success))
    return None if value is None else (value, success[max(success)])


def resampled(pairs: np.ndarray) -> tuple[float, float]:
    """95% percentile interval of the rank correlation over `RESAMPLES` draws of runs with replacement.

    Args:
        pairs: (num_runs, 2). Draws in which one side is constant have no correlation and are left out.
    """
    rng = np.random.default_rng(0)
    counts = rng.multinomial(len(pairs), np.full(len(pairs), 1 / len(pairs)), size=RESAMPLES)
    a, b = (_ranks_in_draws(column, counts) for column in pairs.T)
    with np.errstate(invalid="ignore", divide="ignore"):
        found = (counts * a * b).sum(1) / np.sqrt((counts * a * a).sum(1) * (counts * b * b).sum(1))
    low, high = np.nanpercentile(found, (2.5, 97.5))
    return float(low), float(high)


def _ranks_in_draws(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """(num_draws, num_runs): rank of each run among the runs of each draw, less the draw's mean; ties share their rank.

    Args:
        values: (num_runs,); counts: (num_draws, num_runs), how often each run is in each draw.
    """
    above = (values[:, None] < values[None, :]) + 0.5 * (values[:, None] == values[None, :])
    ranks = counts @ above
    return ranks - (counts * ranks).sum(1, keepdims=True) / counts.sum(1, keepdims=True)


def draw_correlations(rows: Sequence[Row], study: Study) -> Figure:
    """Figure 8: a panel for each environment; MI proxies in blue, all else in grey."""
    environments = grouped(rows, "environment")
    keys = [key for key in DIAGNOSTICS if any(row["diagnostic"] == key for row in rows)]
    figure, axes = draw.grid(1, len(environments), height=0.7 + 0.235 * len(keys))
    for place, (panel, ((environment,), found)) in enumerate(zip(axes[0], environments.items(), strict=True)):
        own = {row["diagnostic"]: row for row in found}
        panel.axvline(0, color=INK, linewidth=1.0)
        shown = [key for key in keys if key in own]
        names = [DIAGNOSTICS[key] if place == 0 or len(shown) < len(keys) else "" for key in shown]
        points = [{"mean": own[k]["spearman"], "values": []} | {b: own[k][b] for b in ("low", "high")} for k in shown]
        draw.intervals(panel, names, points, [BLUE if key in MI_DIAGNOSTICS else BASELINE for key in shown])
        panel.set_xlim(-1.05, 1.05)
        runs = max(row["runs"] for row in own.values())
        draw.heading(panel, f"{environment}, {runs} runs", "Spearman correlation with success")
        panel.grid(True, axis="x")
    draw.legend(figure, ("MI proxies", "entropy, length, reward, format"), (BLUE, BASELINE))
    return draw.finish(figure)


def noise(study: Study) -> list[Row]:
    """Figure 9: success at the last validation by the environment's noise, for arms that differ in it only."""
    return [
        {"environment": arm.environment, "others": _peers_label(arm, study), "noise": level}
        | {"seed": run.seed, "success": success}
        for family in study.families((NOISE,))
        for arm in family
        for level in [fmean(of_each(arm.settings, NOISE))]
        for run in arm.runs
        if (success := last_value(run, SUCCESS)) is not None
    ]


def _peers_label(arm: Arm, study: Study) -> str:
    """The label of the arm's family: that of the arm without the noise."""
    return label_of(
        _without_noise(arm.settings), [_without_noise(a.settings) for a in study.environments[arm.environment]]
    )


def _without_noise(settings: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in settings.items() if unplaced(key) != NOISE}


def draw_noise(rows: Sequence[Row], study: Study) -> Figure:
    """Figure 9: a panel for each environment; success falls as noise drowns the reward's signal."""
    environments = grouped(rows, "environment")
    figure, axes = draw.grid(1, len(environments), height=2.6)
    for panel, ((environment,), own) in zip(axes[0], environments.items(), strict=True):
        families = list(dict.fromkeys(row["others"] for row in own))
        colours = _noise_colours(families)
        drawn = [_noise_line(own, family, colour) for family, colour in zip(families, colours, strict=True)]
        draw.lines(panel, drawn, markers=True)
        draw.percent(panel)
        draw.percent(panel, "x", whole=False)
        draw.heading(panel, environment, "probability that an action slips", "success")
    return draw.finish(figure)


def _noise_colours(families: Sequence[str]) -> list[str]:
    others = [c for c in (VERMILLION, *PALETTE) if c != BASELINE]
    return [BASELINE if name == "no filter" else others[i % len(others)] for i, name in enumerate(families)]


def _noise_line(rows: Sequence[Row], family: str, colour: str) -> draw.Line:
    levels = sorted({row["noise"] for row in rows if row["others"] == family})
    points = [
        {"noise": level} | with_interval([r["success"] for r in rows if (r["others"], r["noise"]) == (family, level)])
        for level in levels
    ]
    return line_of(points, family, colour, "noise")
