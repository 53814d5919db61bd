"""Figures over training steps: 5 (dynamics), 7 (reasoning length), 10 (kept share and groups without variance)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from squelch.cluster.plots import draw
from squelch.cluster.plots.style import INK
from squelch.cluster.report.compare import Comparison, comparisons
from squelch.cluster.report.points import Row, line_of, over_steps
from squelch.cluster.report.runs import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUCCESS, RETRIEVAL, ENTROPY = "validation/success", "first_turn/retrieval_accuracy", "first_turn/conditional_entropy"
CHANCE = "first_turn/retrieval_chance"
DYNAMICS = {SUCCESS: "Success", RETRIEVAL: "Retrieval accuracy (MI proxy)", ENTROPY: "H(Z|X), nats per token"}
LENGTH = {"reasoning_length": "Reasoning tokens per turn"}
SELECTION = {"kept_fraction": "Share of groups kept", "zero_variance_groups": "Groups without reward variance"}
SHARES = (SUCCESS, RETRIEVAL, "kept_fraction")


def dynamics(study: Study) -> list[Row]:
    """Figure 5: success, retrieval accuracy with its chance, and H(Z|X). Empty without a scorer step."""
    rows = curves(study, (*DYNAMICS, CHANCE))
    return rows if any(row["figure"] == RETRIEVAL for row in rows) else []


def lengths(study: Study) -> list[Row]:
    """Figure 7: reasoning tokens per turn."""
    return curves(study, LENGTH)


def selection(study: Study) -> list[Row]:
    """Figure 10: kept share and number of zero-variance groups. Empty if no arm filters."""
    return curves(study, SELECTION) if any(arm.filtered for arm in study.arms) else []


def curves(study: Study, keys: Sequence[str] | Mapping[str, str]) -> list[Row]:
    """The figures of every arm over steps."""
    return [
        {"environment": arm.environment, "arm": arm.label, "figure": key, **point}
        for arm in study.arms
        for key in keys
        for point in over_steps(arm, key)
    ]


def draw_dynamics(rows: Sequence[Row], study: Study) -> Figure:
    """Figure 5: a row of three panels for each comparison."""
    return _draw(rows, study, DYNAMICS)


def draw_selection(rows: Sequence[Row], study: Study) -> Figure:
    """Figure 10: a row of two panels for each comparison."""
    return _draw(rows, study, SELECTION)


def draw_lengths(rows: Sequence[Row], study: Study) -> Figure:
    """Figure 7: one panel for each comparison, two in a row."""
    shown = comparisons(study)
    figure, panels = draw.tiled(len(shown), 2, height=2.3)
    for panel, comparison in zip(panels, shown, strict=True):
        _panel(panel, rows, comparison, "reasoning_length", labels=True)
        draw.heading(panel, comparison.title or LENGTH["reasoning_length"], "training step")
    return draw.finish(figure)


def _draw(rows: Sequence[Row], study: Study, titles: Mapping[str, str]) -> Figure:
    shown = comparisons(study)
    figure, axes = draw.grid(len(shown), len(titles))
    for line, comparison in zip(axes, shown, strict=True):
        for place, (panel, (key, title)) in enumerate(zip(line, titles.items(), strict=True)):
            _panel(panel, rows, comparison, key, labels=len(comparison.arms) > 1 and place == len(titles) - 1)
            draw.heading(panel, title if line is axes[0] else "", "training step" if line is axes[-1] else "")
        if len(study.environments) > 1:
            line[0].set_ylabel(comparison.environment, color=INK)
    return draw.finish(figure)


def _panel(panel: Axes, rows: Sequence[Row], comparison: Comparison, key: str, labels: bool) -> None:
    own = [row for row in rows if row["environment"] == comparison.environment and row["arm"] in comparison.arms]
    drawn = [
        line_of([row for row in own if row["arm"] == arm and row["figure"] == key], arm, colour)
        for arm, colour in zip(comparison.arms, comparison.colours, strict=True)
    ]
    if not any(len(line.x) for line in drawn):
        draw.empty(panel, "not recorded")
        return
    draw.lines(panel, drawn, labels=labels)
    if key in SHARES:
        draw.percent(panel)
    elif key != ENTROPY:  # its changes are small beside its distance from 0
        panel.set_ylim(bottom=0)
        panel.margins(y=0.1)
    if key == RETRIEVAL and (chances := [row["mean"] for row in own if row["figure"] == CHANCE]):
        draw.reference(panel, sum(chances) / len(chances), "chance")
