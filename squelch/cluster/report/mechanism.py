"""Figures of the mechanism: 3 (gradients by bucket), 11 (rewards by phase), 12 (format against MI), 13 (the plane)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from squelch.cluster.plots import draw
from squelch.cluster.plots.style import BASELINE, BLUE, FONT_PT, GREEN, INK, MUTED, OCHRE, VERMILLION
from squelch.cluster.report.compare import arm_colours
from squelch.cluster.report.points import Row, bin_width, grouped, line_of, mean_between, with_interval
from squelch.cluster.report.runs import Arm, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MI, ENTROPY, SUCCESS = "first_turn/mi_est", "first_turn/conditional_entropy", "validation/success"
VALIDITY = "format_validity"
BUCKETS = range(1, 7)
GRADIENTS = {"task": ("task", BLUE), "regulariser": ("KL and entropy", VERMILLION)}
PHASES = ("early", "middle", "late")
BANDS = {"tasks_all_fail": ("no trajectory succeeds", OCHRE), "tasks_mixed": ("some succeed", BLUE)}
BANDS |= {"tasks_all_succeed": ("all succeed", GREEN)}
FAMILIES = {
    "filter": ("filter", "learner.objective.loss_scale"),
    "entropy bonus": ("learner.objective.entropy_coefficient",),
    "KL penalty": ("learner.objective.kl",),
}
"""Interventions of Figure 13, and the settings that each may change."""
ENDS = 0.15
"""Share of a run at each end over which the plane's points average."""
MOST_ARMS = 8
"""Arms that are drawn where each has a panel of its own; the data holds all."""


def gradients(study: Study) -> list[Row]:
    """Figure 3: mean gradient norms by bucket of reward variance. A run's value is the mean over its decompositions."""
    return [
        {"environment": arm.environment, "arm": arm.label, "bucket": bucket, "part": part, **point}
        for arm in study.arms
        for part in (*GRADIENTS, "reward_variance")
        for bucket in BUCKETS
        if (point := _of_runs(arm, f"gradients/q{bucket}/{part}"))["mean"] is not None
    ]


def _of_runs(arm: Arm, key: str) -> Row:
    found = with_interval([statistics.fmean(s) if (s := run.series(key).values()) else None for run in arm.runs])
    return {name: found[name] for name in ("mean", "low", "high")} | {"runs": len(found["values"])}


def draw_gradients(rows: Sequence[Row], study: Study) -> Figure:
    """Figure 3: a panel for each arm; the task gradient grows with the bucket, the regularisers' stays."""
    arms = list(grouped(rows, "environment", "arm").items())[:MOST_ARMS]
    figure, panels = draw.tiled(len(arms), 2, height=2.4)
    for panel, ((environment, arm), own) in zip(panels, arms, strict=True):
        parts = {part: [row for row in own if row["part"] == part] for part in GRADIENTS}
        drawn = [line_of(rows, *GRADIENTS[part], "bucket") for part, rows in parts.items()]
        draw.lines(panel, drawn, markers=True)
        panel.set_ylim(bottom=0)
        panel.set_xticks(list(BUCKETS), [f"Q{bucket}" for bucket in BUCKETS])
        draw.heading(panel, f"{environment}, {arm}", "bucket of reward variance, lowest first", "gradient norm")
    return draw.finish(figure)


def phases(study: Study) -> list[Row]:
    """Figure 11: in each third of training, the share of prompts with no, some and only successful trajectories, and
    the mean reward variance."""
    rows = []
    for arm in study.arms:
        for place, phase in enumerate(PHASES):
            shares = {band: _in_phase(arm, band, place) for band in (*BANDS, "reward_variance_mean")}
            if all(shares[band] is not None for band in BANDS):
                rows.append({"environment": arm.environment, "arm": arm.label, "phase": phase, **shares})
    return rows


def _in_phase(arm: Arm, key: str, place: int) -> float | None:
    means = [
        mean
        for run in arm.runs
        if (mean := mean_between(run, key, run.steps * place / 3 + 1e-9, run.steps * (place + 1) / 3)) is not None
    ]
    return statistics.fmean(means) if means else None


def draw_phases(rows: Sequence[Row], study: Study) -> Figure:
    """Figure 11: a panel for each arm, a bar for each phase."""
    arms = list(grouped(rows, "environment", "arm").items())[:MOST_ARMS]
    figure, panels = draw.tiled(len(arms), 2, height=1.55)
    for panel, ((environment, arm), own) in zip(panels, arms, strict=True):
        bands = [[row[band] for band in BANDS] for row in own]
        draw.stacked(panel, [row["phase"] for row in own], bands, [colour for _, colour in BANDS.values()])
        for place, row in enumerate(own):
            variance = row["reward_variance_mean"]
            if variance is not None:
                _beside(panel, place, f"variance {variance:.3g}")
        draw.heading(panel, f"{environment}, {arm}")
    draw.legend(figure, [name for name, _ in BANDS.values()], [colour for _, colour in BANDS.values()])
    return draw.finish(figure)


def _beside(panel: Axes, row: int, text: str) -> None:
    panel.annotate(
        text,
        (1, row),
        xycoords=("axes fraction", "data"),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        color=MUTED,
        fontsize=FONT_PT - 1,
    )


def form(study: Study) -> list[Row]:
    """Figure 12: format validity with MI-Est and H(Z|X), one point for each scorer step (neighbouring ones
    averaged)."""
    rows = []
    for arm in study.arms:
        for run in arm.runs:
            mi, entropy, valid = (run.series(key) for key in (MI, ENTROPY, VALIDITY))
            width = bin_width([mi]) if mi else 1
            bins: dict[int, list[int]] = {}
            for step in (s for s in mi if s in entropy and s in valid):
                bins.setdefault(step // width, []).append(step)
            for steps in bins.values():
                means = [statistics.fmean(series[s] for s in steps) for series in (valid, mi, entropy)]
                own = {"environment": arm.environment, "arm": arm.label, "seed": run.seed, "step": steps[-1]}
                rows.append(own | dict(zip((VALIDITY, MI, ENTROPY), means, strict=True)))
    return rows


def draw_form(rows: Sequence[Row], study: Study) -> Figure:
    """Figure 12: for each environment, MI-Est and H(Z|X) against format validity."""
    environments = {e: arms for e, arms in study.environments.items() if any(row["environment"] == e for row in rows)}
    figure, axes = draw.grid(len(environments), 2, height=2.4)
    for line, (environment, arms) in zip(axes, environments.items(), strict=True):
        for panel, key, name in zip(line, (MI, ENTROPY), ("MI-Est", "H(Z|X)"), strict=True):
            for arm, colour in zip(arms, arm_colours(arms), strict=True):
                own = [r for r in rows if (r["environment"], r["arm"]) == (environment, arm.label)]
                panel.scatter([r[VALIDITY] for r in own], [r[key] for r in own], s=13, color=colour, alpha=0.55, lw=0)
                if key == ENTROPY and len(arms) > 1 and own:
                    draw.end_label(panel, arm.label, own[-1][key], colour)
            if key == MI:
                draw.reference(panel, 0, "no input dependence")
            draw.percent(panel, "x", whole=False)
            draw.heading(panel, f"{environment}: {name}, nats per token", "share of turns that are well formed")
            panel.margins(x=0.08)
    return draw.finish(figure)


def plane(study: Study) -> list[Row]:
    """Figure 13: H(Z|X), MI-Est and success at the beginning and at the end of runs, for arms that differ in one kind
    of intervention. Means over seeds; the ends are the first and the last `ENDS` of a run."""
    return [
        {"environment": arm.environment, "family": family, "set": place, "arm": arm.label, "end": end, **point}
        for family, keys in FAMILIES.items()
        for place, arms in enumerate(study.families(keys))
        for arm in arms
        for end in ("first", "last")
        if (point := _at_end(arm, end)) is not None
    ]


def _at_end(arm: Arm, end: str) -> dict[str, float] | None:
    found = {}
    for key in (ENTROPY, MI, SUCCESS):
        means = [mean for run in arm.runs if (mean := _mean_at(run.series(key), run.steps, end)) is not None]
        if not means:
            return None
        found[key] = statistics.fmean(means)
    return found


def _mean_at(series: Mapping[int, float], steps: int, end: str) -> float | None:
    """The mean over one end of a run; the first or the last value if the end has none."""
    if not series:
        return None
    inside = [v for s, v in series.items() if (s <= ENDS * steps if end == "first" else s >= (1 - ENDS) * steps)]
    ordered = list(series.values())
    return statistics.fmean(inside) if inside else ordered[0 if end == "first" else -1]


def draw_plane(rows: Sequence[Row], study: Study) -> Figure:
    """Figure 13: for each intervention, arrows from the beginning to the end of training in two planes."""
    sets = list(grouped(rows, "environment", "family", "set").items())[:MOST_ARMS]
    figure, axes = draw.grid(len(sets), 2, height=2.7)
    for line, ((environment, family, _), own) in zip(axes, sets, strict=True):
        _arrows(line[0], own, ENTROPY, MI)
        draw.heading(line[0], f"{environment}: {family}", "H(Z|X), nats per token", "MI-Est, nats per token")
        _arrows(line[1], own, MI, SUCCESS)
        draw.heading(line[1], "", "MI-Est, nats per token", "success")
        draw.percent(line[1], whole=False)
    return draw.finish(figure)


def _arrows(panel: Axes, rows: Sequence[Row], across: str, up: str) -> None:
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    for place, arm in enumerate(arms):
        ends = {row["end"]: row for row in rows if row["arm"] == arm}
        if len(ends) < 2:
            continue
        first, last = ((ends[end][across], ends[end][up]) for end in ("first", "last"))
        colour = BASELINE if place == 0 else BLUE
        strength = 1.0 if place == 0 else 0.45 + 0.55 * place / max(1, len(arms) - 1)
        arrow = {"arrowstyle": "-|>", "color": colour, "alpha": strength, "linewidth": 1.6, "shrinkA": 0, "shrinkB": 0}
        panel.annotate("", last, first, arrowprops=arrow)
        panel.plot(*zip(first, last, strict=True), "o", color=colour, ms=2.5, alpha=strength, markevery=[0])
        panel.annotate(
            arm,
            last,
            xytext=(4, 4),
            textcoords="offset points",
            fontsize=FONT_PT - 1.5,
            color=INK,
            annotation_clip=False,
        )
    panel.margins(0.2)
    panel.grid(True, axis="both")
