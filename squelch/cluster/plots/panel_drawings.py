"""How each of Grafana's types of panel is drawn on matplotlib's axes: one table, `DRAWINGS`. Pure.

A type that the table lacks is a KeyError; a test holds the table against the committed dashboards. Names that end with
`low` and `high`, which Grafana draws as two lines, become the band of the line that they belong to; chance, null and
bounds are dashed. Marks stand on the time axis of the types in `WITH_TIME`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from squelch.cluster.grafana.boards import Panel, State
from squelch.cluster.plots import draw
from squelch.cluster.plots.step_axis import StepClock, mark_steps
from squelch.cluster.plots.style import (
    BASELINE,
    BLUE,
    FONT_PT,
    GREEN,
    INK,
    MUTED,
    OCHRE,
    PALETTE,
    PURPLE,
    RED,
    VERMILLION,
)
from squelch.kit.untrusted.files import shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_LABELS = 6
"""Lines of a panel that are labelled; a panel of more labels the highest."""
HOURS_FROM = 200.0
"""Minutes from which on an axis of time is marked in hours."""
LABEL_PT, LABEL_CHARACTERS = FONT_PT - 2.5, 18
REFERENCES = ("chance", "null", "bound", "standard error")
"""Ends of the names of series that others are compared with."""
COLOURS = {
    "green": GREEN,
    "blue": BLUE,
    "orange": VERMILLION,
    "yellow": OCHRE,
    "purple": PURPLE,
    "red": RED,
    "gray": BASELINE,
}
"""Grafana's names of the colours that the dashboards use, and ours. `transparent` is not drawn."""


@dataclass(frozen=True)
class Named:
    """One series of a panel under the name that its legend gives it, at minutes since the start."""

    name: str
    minutes: list[float]
    values: list[float]


@dataclass(frozen=True)
class Marked:
    """The events of one kind: when each began and ended, minutes since the start."""

    name: str
    colour: str
    events: list[tuple[float, float]]


def draw_panel(
    axes: Axes,
    panel: Panel,
    series: Sequence[Named],
    marks: Sequence[Marked],
    minutes: float,
    clock: StepClock | None = None,
) -> None:
    """Draws a panel; one without a value says so. `minutes`: where the axes of time end, which begin at 0; `clock`:
    makes them axes of steps."""
    axes.tick_params(labelsize=FONT_PT - 2)
    axes.grid(False, axis="x")
    drawing, known = DRAWINGS[panel.kind], [one for one in series if one.values]
    if not known:
        draw.empty(axes)
        return
    drawing(axes, panel, known)
    if panel.kind in WITH_TIME:
        axes.set_xlim(0.0, minutes)
        if clock is None:
            _minutes(axes)
        else:
            mark_steps(axes, clock)
        _mark(axes, marks)


def _mark(axes: Axes, marks: Sequence[Marked]) -> None:
    """A line where an event began, a shade until it ended, and a triangle below the axis, as Grafana has them."""
    left, right = axes.get_xlim()
    for mark in marks:
        colour = COLOURS[mark.colour]
        shown = [(start, end) for start, end in mark.events if end >= left and start <= right]
        for start, end in shown:
            axes.axvspan(start, end, color=colour, alpha=0.08, linewidth=0, zorder=0)
            axes.axvline(start, color=colour, lw=0.8, ls=(0, (2, 2)), alpha=0.8, zorder=1)
        feet = axes.get_xaxis_transform()
        axes.plot(
            [start for start, _ in shown], [0.0] * len(shown), "^", color=colour, ms=4.5, transform=feet, clip_on=False
        )
    axes.set_xlim(left, right)


def stretches(minutes: Sequence[float], step: float) -> list[tuple[float, float]]:
    """(start, end) of each stretch of times of which none is more than a step and a half after the one before."""
    found: list[tuple[float, float]] = []
    for minute in minutes:
        if found and minute - found[-1][1] <= 1.5 * step:
            found[-1] = found[-1][0], minute
        else:
            found.append((minute, minute))
    return found


def _time_series(axes: Axes, panel: Panel, series: list[Named]) -> None:
    if panel.stacked:
        _stack(axes, series, panel.unit)
    else:
        _lines(axes, series, panel.unit)
    values = [value for one in series for value in one.values]
    if not any(values) or not panel.stacked:
        _around_a_constant(axes, min(values), max(values))
    _limits(axes, panel)
    _unit(axes, panel.unit)


def _around_a_constant(axes: Axes, low: float, high: float) -> None:
    """An axis from 0 with the line half way up, instead of one at the scale of the value's rounding error."""
    size = max(abs(low), abs(high))
    if high - low <= 1e-6 * size:
        axes.set_ylim((0.0, 1.0) if size == 0 else (min(0.0, 2 * low), max(0.0, 2 * high)))


def _lines(axes: Axes, series: list[Named], unit: str) -> None:
    ends: dict[str, dict[str, Named]] = {}
    plain: list[Named] = []
    for one in series:
        base, _, last = one.name.rpartition(", ")
        if last in ("low", "high") and base:
            ends.setdefault(base, {})[last] = one
        else:
            plain.append(one)
    colours = _colours(plain)
    for one in plain:
        colour, band = colours[one.name], ends.pop(one.name, {})
        if len(band) == 2 and len(band["low"].minutes) == len(band["high"].minutes):
            between = band["low"].values, band["high"].values
            axes.fill_between(band["low"].minutes, *between, color=colour, alpha=0.16, linewidth=0)
        dashed = one.name.endswith(REFERENCES)
        axes.plot(one.minutes, one.values, color=colour, lw=1.1 if dashed else 1.6, ls=(0, (3, 2)) if dashed else "-")
    for band in ends.values():  # the interval of a series that has no value itself
        for one in band.values():
            axes.plot(one.minutes, one.values, color=BASELINE, lw=1.0)
    for one, name in _labels(plain):
        text = _with_value(name if len(plain) > 1 else "", one.values[-1], unit)
        _label(axes, text, one.values[-1], colours[one.name])


def _labels(series: list[Named]) -> list[tuple[Named, str]]:
    """The lines that are labelled, and their labels. Lines that lie on one another share a label; of more than
    `MOST_LABELS` labels those of the highest lines remain."""
    same: dict[tuple[float, ...], list[Named]] = {}
    for one in series:
        same.setdefault(tuple(one.values), []).append(one)
    highest = sorted(same.values(), key=lambda lines: -lines[0].values[-1])[:MOST_LABELS]
    return [(lines[0], _together([one.name for one in lines])) for lines in highest]


def _together(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} (+{len(names) - 1})"


def _with_value(name: str, value: float, unit: str) -> str:
    """A label that says the last value, which is never parted from its unit."""
    last = written(value, unit).replace(" ", "\u00a0")
    return f"{shortened(name, 2 * LABEL_CHARACTERS)} {last}".strip()


def _label(axes: Axes, text: str, y: float, colour: str) -> None:
    draw.end_label(axes, text, y, colour, LABEL_PT, LABEL_CHARACTERS)


def _colours(series: list[Named]) -> dict[str, str]:
    """A colour for each name; what a name is compared with (`trajectory, chance`) shares its colour."""
    bases = list(dict.fromkeys(_base(one.name) for one in series))
    palette = (*PALETTE, BASELINE)
    return {one.name: palette[bases.index(_base(one.name)) % len(palette)] for one in series}


def _base(name: str) -> str:
    return re.sub(rf",? ?({'|'.join(REFERENCES)})$", "", name)


def _stack(axes: Axes, series: list[Named], unit: str) -> None:
    times = sorted({minute for one in series for minute in one.minutes})
    values = [dict(zip(one.minutes, one.values, strict=True)) for one in series]
    rows = [[known.get(minute, 0.0) for minute in times] for known in values]
    colours = [(*PALETTE, BASELINE)[i % (len(PALETTE) + 1)] for i in range(len(series))]
    axes.stackplot(times, rows, colors=colours, alpha=0.75, linewidth=0)
    below = 0.0
    for one, row, colour in zip(series, rows, colours, strict=True):
        if row[-1] > 0:
            _label(axes, _with_value(one.name, row[-1], unit), below + row[-1] / 2, colour)
        below += row[-1]


def _stat(axes: Axes, panel: Panel, series: list[Named]) -> None:
    one = series[0]
    axes.axis("off")
    place = {"transform": axes.transAxes, "ha": "left", "va": "center", "color": BLUE, "weight": "bold"}
    axes.text(0.0, 0.62, written(one.values[-1], panel.unit), fontsize=FONT_PT + 7, **place)
    inner = axes.inset_axes((0.0, 0.0, 1.0, 0.32))
    inner.plot(one.minutes, one.values, color=BLUE, lw=1.1)
    inner.axis("off")


def by_bucket(series: Sequence[Named]) -> list[Named]:
    """The counts in each bucket, at the times of all. `series`: cumulative by their upper end, to `+Inf`."""
    ordered = sorted(series, key=lambda one: float(one.name.replace("+Inf", "inf")))
    times = sorted({minute for one in ordered for minute in one.minutes})
    known = [dict(zip(one.minutes, one.values, strict=True)) for one in ordered]
    cumulative = [[values.get(minute, 0.0) for minute in times] for values in known]
    counts = [cumulative[0], *([b - a for a, b in zip(x, y, strict=True)] for x, y in pairwise(cumulative))]
    return [Named(one.name, times, values) for one, values in zip(ordered, counts, strict=True)]


def _heat_map(axes: Axes, panel: Panel, series: list[Named]) -> None:
    buckets = by_bucket(series)
    times, counts = buckets[0].minutes, [one.values for one in buckets]
    step = (times[-1] - times[0]) / max(1, len(times) - 1) or 1.0
    edges = [minute - step / 2 for minute in (*times, times[-1] + step)]
    most = max(max(row) for row in counts) or 1.0
    for row, values in enumerate(counts):
        at = 0
        for value, equal in groupby(values):  # equal neighbours are one bar: a tenth of the elements
            until = at + len(list(equal))
            if value > 0:
                bar = [(edges[at], edges[until] - edges[at])]
                axes.broken_barh(bar, (row, 1), color=BLUE, alpha=min(1.0, value / most), linewidth=0)
            at = until
    axes.set_ylim(0, len(counts))
    axes.set_yticks([i + 1 for i in range(len(buckets))], [one.name for one in buckets])
    axes.grid(False)


def _state_timeline(axes: Axes, panel: Panel, series: list[Named]) -> None:
    """One row for each series, in which each stretch of time has the colour of its value's state; the states that
    occur and have a name are listed below."""
    step = min((b - a for one in series for a, b in pairwise(one.minutes)), default=1.0)
    occur: dict[int, State] = {}
    for row, one in enumerate(series):
        for value, (start, end) in _states(one, step):
            state = panel.states.get(value)
            if state is not None and state.colour in COLOURS:
                bar = [(start, end - start + step)]
                axes.broken_barh(bar, (row - 0.38, 0.76), color=COLOURS[state.colour], linewidth=0)
                occur[value] = state
    axes.set_yticks(range(len(series)), [one.name.replace("_", " ") for one in series])
    axes.set_ylim(len(series) - 0.5, -0.5)
    axes.tick_params(axis="y", labelcolor=INK)
    _list_states(axes, [occur[value] for value in sorted(occur) if occur[value].text])


def _states(one: Named, step: float) -> list[tuple[int, tuple[float, float]]]:
    """(value, (start, end)) of each stretch of time with one value."""
    points = zip(one.minutes, one.values, strict=True)
    parts = [(value, [m for m, _ in part]) for value, part in groupby(points, key=lambda point: round(point[1]))]
    return [(value, span) for value, minutes in parts for span in stretches(minutes, step)]


def _list_states(axes: Axes, states: Sequence[State]) -> None:
    from matplotlib.patches import Patch

    if states:
        patches = [Patch(color=COLOURS[state.colour], label=state.text) for state in states]
        axes.legend(
            handles=patches,
            loc="upper left",
            bbox_to_anchor=(-0.02, -0.16),
            ncols=4,
            frameon=False,
            fontsize=LABEL_PT,
            handlelength=0.9,
            handletextpad=0.4,
            borderpad=0.0,
            columnspacing=0.9,
        )


def _xy(axes: Axes, panel: Panel, series: list[Named]) -> None:
    """Every other series over the first at the times that both have: one colour each, paler where it is earlier."""
    across, others = dict(zip(series[0].minutes, series[0].values, strict=True)), series[1:]
    for one, colour in zip(others, PALETTE, strict=False):
        points = [(across[m], value) for m, value in zip(one.minutes, one.values, strict=True) if m in across]
        points = list(dict.fromkeys(points))
        for place, (x, y) in enumerate(points):
            axes.plot(x, y, "o", color=colour, ms=4, alpha=0.3 + 0.7 * (place + 1) / len(points), mew=0)
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, lw=0.8, alpha=0.35)
            _label(axes, shortened(one.name.replace("_", " "), 2 * LABEL_CHARACTERS), points[-1][1], colour)
    newest = max(others, key=lambda one: one.minutes[-1], default=None)
    if newest is not None and newest.minutes[-1] in across:
        last = across[newest.minutes[-1]], newest.values[-1]
        axes.plot(*last, "o", color=INK, ms=7, mfc="none", mew=1.2)
        beside = {"xytext": (7, -3), "textcoords": "offset points", "fontsize": LABEL_PT, "color": MUTED}
        axes.annotate("now", last, **beside)
    axes.margins(0.18)
    axes.set_xlabel(series[0].name, fontsize=FONT_PT - 2)
    axes.set_ylabel(_unit_name(panel.unit), fontsize=FONT_PT - 2)


def _unit_name(unit: str) -> str:
    return unit.removeprefix("suffix: ") if unit.startswith("suffix: ") else ""


def _limits(axes: Axes, panel: Panel) -> None:
    if panel.low is not None:
        axes.set_ylim(bottom=panel.low - (0.02 if panel.high is not None else 0))
    if panel.high is not None:
        axes.set_ylim(top=panel.high * 1.02)


def _unit(axes: Axes, unit: str) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: written(value, unit)))


def _minutes(axes: Axes) -> None:
    """Marks in minutes, or in hours where the axis is longer than `HOURS_FROM` minutes."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator

    left, right = axes.get_xlim()
    if right - left > HOURS_FROM:
        apart = next(hours for hours in (1, 2, 6, 12, 24, 48, 96, math.inf) if (right - left) / 60 / hours <= 5)
        axes.xaxis.set_major_locator(MultipleLocator(60 * apart) if apart < math.inf else MaxNLocator(4))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda minute, _: f"{minute / 60:g} h"))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda minute, _: f"{minute:g} min"))


SCALES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def written(value: float, unit: str) -> str:
    """A value in Grafana's unit, short enough for an axis: `41%`, `2.5 s`, `1.2 GB`, `0.12`."""
    if not math.isfinite(value):
        return "n/a"
    if unit == "percentunit":
        return f"{round(100 * value, 1):g}%"
    if unit == "s":
        return f"{value / 60:.3g} min" if abs(value) >= 120 else f"{value:.3g} s"
    for size, letter in SCALES:
        if abs(value) >= size:
            return f"{value / size:.3g} {letter}{'B' if unit == 'bytes' else ''}"
    return f"{value:.3g}{' B' if unit == 'bytes' else ''}"


DRAWINGS: dict[str, Callable[[Axes, Panel, list[Named]], None]] = {
    "timeseries": _time_series,
    "stat": _stat,
    "heatmap": _heat_map,
    "state-timeline": _state_timeline,
    "xychart": _xy,
}
"""How each of Grafana's types of panel is drawn."""
WITH_TIME = {"timeseries", "heatmap", "state-timeline"}
"""Types with a time axis."""
