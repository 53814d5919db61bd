"""Where runs collapse: MI, D, kept share and success of each turn and of each kind of task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from squelch.cluster.plots import draw
from squelch.cluster.plots.style import INK, PALETTE
from squelch.cluster.report.compare import TOGETHER
from squelch.cluster.report.points import Row, grouped, line_of, over_steps
from squelch.cluster.report.runs import LONGEST_WORD, Arm, Study
from squelch.cluster.runs.by_kind_and_turn import DIMENSIONS, FIRST, MOST_PARTS, Column, part_of, place
from squelch.kit.process.terminal import one_line
from squelch.kit.untrusted.files import shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LINES = len(PALETTE)


def where(study: Study) -> list[Row]:
    """The metrics of each part of the arms' runs over steps; of a dimension in which an arm has values of two parts or
    more. A turn that no trajectory reached has keys without values."""
    return [row for arm in study.arms for dimension in DIMENSIONS for row in _of_arm(arm, dimension)]


def _of_arm(arm: Arm, dimension: str) -> list[Row]:
    lines = (line for run in arm.runs for line in run.lines)
    keys = {key for line in lines for key, value in line.items() if value is not None and key.startswith(FIRST)}
    columns = {column: _parts(column, keys) for column in DIMENSIONS[dimension]}
    parts = sorted({name for found in columns.values() for name in found}, key=place)[:MOST_PARTS]
    rows = [
        {
            "environment": arm.environment,
            "arm": arm.label,
            "by": dimension,
            "part": shortened(one_line(name), LONGEST_WORD),
            "figure": column.title,
            **point,
        }
        for column, found in columns.items()
        for name in parts
        if name in found
        for point in over_steps(arm, found[name])
    ]
    return rows if len({row["part"] for row in rows}) > 1 else []


def _parts(column: Column, keys: set[str]) -> dict[str, str]:
    """The keys of a column's metric by part."""
    return {name: key for key in keys if (name := part_of(column, key)) is not None}


def draw_where(rows: Sequence[Row], study: Study) -> Figure:
    """A row of four panels for each arm and dimension, of the first `TOGETHER` arms."""
    arms = list(grouped(rows, "environment", "arm"))[:TOGETHER]
    shown = {key: own for key, own in grouped(rows, "environment", "arm", "by").items() if key[:2] in arms}
    figure, axes = draw.grid(len(shown), len(DIMENSIONS["turn"]), height=2.2)
    for line, ((environment, arm, dimension), own) in zip(axes, shown.items(), strict=True):
        parts = _some(sorted({row["part"] for row in own}, key=place))
        for panel, column in zip(line, DIMENSIONS[dimension], strict=True):
            _panel(panel, [row for row in own if row["figure"] == column.title], parts, column, line is axes[-1])
        line[0].set_ylabel(f"{arm}, {environment}, by {dimension}" if len(arms) > 1 else f"by {dimension}", color=INK)
        prefix = "turn " if dimension == "turn" else ""
        success = {row["part"]: row["mean"] for row in own if row["figure"] == DIMENSIONS[dimension][-1].title}
        for part, colour in zip(parts, PALETTE, strict=False):
            if part in success:
                draw.end_label(line[-1], f"{prefix}{part}", success[part], colour)
    return draw.finish(figure)


def _some(parts: Sequence[str]) -> list[str]:
    """At most `MOST_LINES` of the parts, evenly from the first to the last."""
    most = min(MOST_LINES, len(parts))
    return [parts[round(at * (len(parts) - 1) / (most - 1))] for at in range(most)]


def _panel(panel: Axes, rows: Sequence[Row], parts: Sequence[str], column: Column, last: bool) -> None:
    drawn = [
        line_of([{**row, "low": None} for row in rows if row["part"] == part], part, colour)
        for part, colour in zip(parts, PALETTE, strict=False)
    ]
    draw.heading(panel, column.title, "training step" if last else "")
    if not any(len(line.x) for line in drawn):
        draw.empty(panel, "not recorded")
        return
    draw.lines(panel, drawn, labels=False)
    if column.share:
        draw.percent(panel)
    else:
        panel.margins(y=0.1)
