"""The parts that figures are made of. Every function draws on a matplotlib axes; none opens a window or a file.

A panel makes one comparison. Its lines are labelled at their ends, in their colours. Every figure calls `finish` last,
which moves overlapping labels apart.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from squelch.cluster.plots.style import FONT_PT, INK, MUTED, PAPER, WIDTH

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LABEL_CHARACTERS = 22
"""Width of a label at a line's end; longer labels are wrapped."""
LINE_HEIGHT = 1.22
"""Height of a line of text, as a multiple of its size."""
END_LABEL = "squelch-end-label"
"""Mark (matplotlib's gid) of the labels that `finish` moves apart."""


@dataclass(frozen=True)
class Line:
    """One line of a panel. `x`, `y`: (num_points,); `low`, `high`: its interval, (num_points,) each, or empty."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    dashed: bool = False


def grid(
    rows: int, columns: int, height: float = 2.1, share_y: Literal["none", "row"] = "none"
) -> tuple[Figure, list[list[Axes]]]:
    """A figure of a page's width with (rows, columns) panels of `height` inches each."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, rows * height + 0.35), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharey=share_y)
    return figure, [list(row) for row in axes]


def tiled(count: int, columns: int, height: float) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels in at most `columns` columns."""
    columns = min(columns, count)
    figure, axes = grid(math.ceil(count / columns), columns, height)
    panels = [panel for row in axes for panel in row]
    for spare in panels[count:]:
        spare.set_visible(False)
    return figure, panels[:count]


def heading(axes: Axes, title: str, x: str = "", y: str = "") -> None:
    """A panel's title at its left, and the names of its axes."""
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(False, axis="x")


def lines(axes: Axes, drawn: Sequence[Line], labels: bool = True, markers: bool = False) -> None:
    """Lines with their intervals; a line of few points also shows the points."""
    for line in drawn:
        if len(line.low):
            axes.fill_between(line.x, line.low, line.high, color=line.colour, alpha=0.16, linewidth=0)
        few = markers or len(line.x) <= 12
        axes.plot(
            line.x,
            line.y,
            color=line.colour,
            linestyle="--" if line.dashed else "-",
            marker="o" if few else None,
            ms=3.5,
        )
        if labels and len(line.x):
            end_label(axes, line.label, line.y[-1], line.colour)


def end_label(
    axes: Axes, text: str, y: float, colour: str, size: float = FONT_PT - 0.5, characters: int = LABEL_CHARACTERS
) -> None:
    """A label at the right edge of the panel, at the height of a line's last point, in lines of `characters`."""
    if not text or not math.isfinite(y):
        return
    wrapped = "\n".join(textwrap.wrap(text, characters, break_on_hyphens=False)[:3])
    axes.annotate(
        wrapped,
        (1, y),
        xycoords=("axes fraction", "data"),
        xytext=(5, 0),
        textcoords="offset points",
        color=colour,
        va="center",
        fontsize=size,
        annotation_clip=False,
        gid=END_LABEL,
        linespacing=1.0,
    )


def reference(axes: Axes, y: float, label: str) -> None:
    """A horizontal line to compare with, e.g. chance, with its label inside the panel."""
    axes.axhline(y, color=MUTED, linewidth=1.0, linestyle=(0, (2, 2)))
    axes.annotate(
        label,
        (0.01, y),
        xycoords=("axes fraction", "data"),
        xytext=(0, 2),
        textcoords="offset points",
        color=MUTED,
        fontsize=FONT_PT - 1.5,
    )


def intervals(axes: Axes, names: Sequence[str], points: Sequence[dict[str, Any]], colours: Sequence[str]) -> None:
    """One row for each name: the mean as a dot, its interval as a bar, single values as small dots.

    Args:
        points: for each name `mean`, `low`, `high` (None without an interval) and `values`.
    """
    for row, (point, colour) in enumerate(zip(points, colours, strict=True)):
        values = point["values"]
        if point["low"] is not None:
            axes.plot([point["low"], point["high"]], [row, row], color=colour, linewidth=7, alpha=0.28)
        axes.scatter(values, [row] * len(values), s=11, color=colour, linewidth=0, zorder=3)
        axes.scatter([point["mean"]], [row], s=46, color=colour, edgecolor=PAPER, linewidth=1.2, zorder=4)
    axes.set_yticks(range(len(names)), ["\n".join(textwrap.wrap(name, 26)) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", labelcolor=INK)
    axes.grid(True, axis="x")
    axes.grid(False, axis="y")


def stacked(axes: Axes, names: Sequence[str], shares: Sequence[Sequence[float]], colours: Sequence[str]) -> None:
    """One horizontal bar for each name, divided by shares that sum to 1. `shares`: (num_names, num_parts)."""
    for row, parts in enumerate(shares):
        left = 0.0
        for part, colour in zip(parts, colours, strict=True):
            axes.barh(row, part, left=left, color=colour, height=0.72, edgecolor=PAPER, linewidth=1.0)
            if part >= 0.08:
                axes.text(
                    left + part / 2, row, f"{part:.0%}", ha="center", va="center", color=PAPER, fontsize=FONT_PT - 1
                )
            left += part
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0, 1)
    axes.tick_params(axis="y", labelcolor=INK)
    axes.grid(False)
    axes.xaxis.set_major_formatter(_percent())


def percent(axes: Axes, which: str = "y", whole: bool = True) -> None:
    """Writes an axis of shares in percent, from 0 to 100% if `whole`."""
    (axes.yaxis if which == "y" else axes.xaxis).set_major_formatter(_percent())
    if whole:
        (axes.set_ylim if which == "y" else axes.set_xlim)(-0.02, 1.02)


def _percent() -> Any:
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda share, _: f"{round(100 * share, 6):g}%")


def empty(axes: Axes, text: str = "no data") -> None:
    """A panel that has nothing to show says so."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=MUTED)


def legend(figure: Figure, names: Sequence[str], colours: Sequence[str]) -> None:
    """Names of parts that have no line's end, as coloured words above the panels."""
    from matplotlib.patches import Patch

    patches = [Patch(color=colour, label=name) for name, colour in zip(names, colours, strict=True)]
    figure.legend(
        handles=patches, loc="outside upper left", ncols=len(names), frameon=False, handlelength=1.0, handleheight=0.9
    )


def finish(figure: Figure) -> Figure:
    """Lays the figure out, then moves labels at lines' ends apart where they would overlap."""
    from matplotlib.text import Annotation

    whole_steps(figure)
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
    figure.set_layout_engine("none")
    for axes in figure.axes:
        axes.get_ylim()  # settles limits that matplotlib would settle later
        labels = [t for t in axes.texts if isinstance(t, Annotation) and t.get_gid() == END_LABEL]
        heights = [axes.transData.transform((0, text.xy[1]))[1] * 72 / figure.dpi for text in labels]
        sizes = [LINE_HEIGHT * float(text.get_fontsize()) * (1 + text.get_text().count("\n")) for text in labels]
        ends = [height * 72 / figure.dpi for height in (axes.bbox.y0, axes.bbox.y1)]
        for text, own, moved in zip(labels, heights, apart(heights, sizes, *ends), strict=True):
            text.set_position((5, moved - own))
    return figure


def whole_steps(figure: Figure) -> None:
    """Axes of steps have marks at whole numbers."""
    from matplotlib.ticker import MaxNLocator

    for axes in figure.axes:
        if axes.get_xlabel().endswith("step"):
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))


def apart(
    heights: Sequence[float], sizes: Sequence[float], low: float = -math.inf, high: float = math.inf
) -> list[float]:
    """The heights, moved as little as needed so that no two labels overlap, in the same order.

    Args:
        heights: (num_labels,) centres of the labels; sizes: (num_labels,) their heights, in one unit.
        low, high: ends of the panel, which labels leave only if they do not fit into it.
    """

    def inside(members: Sequence[int], centre: float) -> float:
        half = sum(sizes[m] for m in members) / 2
        return max(low + half, min(high - half, centre))

    order = sorted(range(len(heights)), key=lambda i: heights[i])
    clusters: list[tuple[list[int], float]] = []  # members from below, and the centre of their stack
    for i in order:
        clusters.append(([i], inside([i], heights[i])))
        while len(clusters) > 1 and _overlap(clusters[-2], clusters[-1], sizes):
            members = clusters[-2][0] + clusters[-1][0]
            clusters[-2:] = [(members, inside(members, sum(heights[m] for m in members) / len(members)))]
    moved = list(heights)
    for members, centre in clusters:
        at = centre - sum(sizes[m] for m in members) / 2
        for m in members:
            moved[m] = at + sizes[m] / 2
            at += sizes[m]
    return moved


def _overlap(below: tuple[list[int], float], above: tuple[list[int], float], sizes: Sequence[float]) -> bool:
    half = sum(sizes[m] for m in (*below[0], *above[0])) / 2
    return above[1] - below[1] < half - 1e-9
