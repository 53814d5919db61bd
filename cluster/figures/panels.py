"""Draws the panels of a dashboard from the answers of a Prometheus, as Grafana would place them. Pure.

    panels    each panel as an SVG of its own, for a page that places them (`squelch inspect`)
    picture   rows of a dashboard as one SVG, for the docs

`DRAWINGS` maps each type of panel to a drawing; a type that it lacks is a KeyError, and a test holds it against the
committed dashboards. A panel without a value says so. Names that end with `low` and `high`, which Grafana draws as two
lines, become the band of the line that they belong to; chance, null and bounds are dashed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from cluster.figures import draw
from cluster.figures.boards import COLUMNS, Board, Panel, Row, concrete
from cluster.figures.style import BASELINE, BLUE, FONT_PT, INK, MUTED, PALETTE, WIDTH, render
from envs.untrusted.files import shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

    from cluster.grafana.check import Prometheus, Series

CELL_HEIGHT, ROW_TITLE, TITLE, MARGIN = 0.25, 0.42, 0.3, 0.08
"""Inches: of one row of Grafana's grid, of a row's title, of a panel's title, and around the page."""
ROOM = {
    "timeseries": (0.5, 1.02, 0.3),
    "stat": (0.1, 0.1, 0.1),
    "heatmap": (0.5, 0.25, 0.3),
    "state-timeline": (1.05, 0.25, 0.3),
    "xychart": (0.62, 0.9, 0.5),
}
"""Inches left of the axes, right of it (for labels at lines' ends) and below it, by type of panel."""
MOST_LABELS = 6
"""Lines of a panel that are labelled; a panel of more labels the highest."""
LABEL_PT, LABEL_CHARACTERS = FONT_PT - 2.5, 18
LONGEST_TITLE = 44
REFERENCES = ("chance", "null", "bound", "standard error")
"""Ends of the names of series that others are compared with."""
Answers = Mapping[str, "Sequence[Series]"]
"""The series of each expression, as `cluster.grafana.check.Prometheus.over` answers them."""


@dataclass(frozen=True)
class Named:
    """One series of a panel under the name that its legend gives it, at minutes since the start."""

    name: str
    minutes: list[float]
    values: list[float]


@dataclass(frozen=True)
class Drawn:
    """A panel and its drawing, an `<svg>` element."""

    panel: Panel
    svg: str


def expressions(board: Board, instance: str = ".*") -> list[str]:
    """Every expression of the board, for `Prometheus.over`. `instance`: as in `panels`."""
    return [concrete(target.expr, instance) for panel in board.panels for target in panel.targets]


def answers(board: Board, prometheus: Prometheus, start: float, end: float, instance: str = ".*") -> Answers:
    """The answers of a Prometheus to every expression of the board, from `start` to `end` (unix seconds)."""
    return {expr: prometheus.over(expr, start, end) for expr in expressions(board, instance)}


def panels(board: Board, answered: Answers, instance: str = ".*") -> list[Drawn]:
    """The drawing of every panel of the board.

    Args:
        answered: the series of each expression of `expressions(board, instance)`.
        instance: regular expression of the runs' addresses that are shown.
    """
    start = _start(answered)
    return [
        Drawn(panel, _one(f"{board.uid}-{place}", panel, _named(panel, answered, start, instance)))
        for place, panel in enumerate(board.panels)
    ]


def picture(board: Board, answered: Answers, rows: Sequence[Row] | None = None) -> str:
    """The board, or some of its rows, as one `<svg>` element with the committed layout."""
    shown = board.rows if rows is None else tuple(rows)
    start = _start(answered)

    def drawn() -> Figure:
        from matplotlib.figure import Figure

        high = sum(_grid_height(row) * CELL_HEIGHT + ROW_TITLE for row in shown)
        figure = Figure(figsize=(WIDTH, high))
        top = high
        for row in shown:
            figure.text(MARGIN / WIDTH, (top - 0.24) / high, row.title, weight="bold", fontsize=FONT_PT + 2.5)
            top -= ROW_TITLE
            for panel in row.panels:
                box = Box(WIDTH * panel.x / COLUMNS, top - CELL_HEIGHT * (panel.y - row.panels[0].y), *_size(panel))
                _draw(box.axes(figure, panel.kind), panel, _named(panel, answered, start, ".*"))
            top -= _grid_height(row) * CELL_HEIGHT
        return draw.finish(figure)

    return render(board.uid, f"Dashboard {board.title}: {board.question}", _told(shown), drawn)


@dataclass(frozen=True)
class Box:
    """The place of a panel in a figure, in inches: its left and upper edge, its width and height."""

    left: float
    top: float
    width: float
    height: float

    def axes(self, figure: Figure, kind: str) -> Axes:
        """Axes inside the box, with room for the marks and labels of this kind of panel."""
        wide, high = figure.get_size_inches()
        left, right, bottom = ROOM.get(kind, ROOM["timeseries"])
        below = self.top - self.height + bottom
        inside = (self.width - left - right, self.height - bottom - TITLE)
        return figure.add_axes(((self.left + left) / wide, below / high, inside[0] / wide, inside[1] / high))


def _size(panel: Panel) -> tuple[float, float]:
    return WIDTH * panel.width / COLUMNS, panel.height * CELL_HEIGHT


def rows_with_data(board: Board, answered: Answers) -> list[Row]:
    """The rows of which a panel has a value; e.g. those of Ray have none where Prometheus does not scrape it."""
    return [
        row
        for row in board.rows
        if any(one.values for panel in row.panels for one in _named(panel, answered, 0.0, ".*"))
    ]


def _told(rows: Sequence[Row]) -> str:
    return " ".join(f"{panel.title}: {panel.help}" for row in rows for panel in row.panels)


def _grid_height(row: Row) -> int:
    return max(p.y + p.height for p in row.panels) - min(p.y for p in row.panels)


def _one(name: str, panel: Panel, series: list[Named]) -> str:
    def drawn() -> Figure:
        from matplotlib.figure import Figure

        wide, high = _size(panel)
        figure = Figure(figsize=(wide, high))
        _draw(Box(0.0, high, wide, high).axes(figure, panel.kind), panel, series)
        return draw.finish(figure)

    return render(name, panel.title, panel.help, drawn)


def _draw(axes: Axes, panel: Panel, series: list[Named]) -> None:
    draw.heading(axes, shortened(panel.title, LONGEST_TITLE))
    axes.title.set_fontsize(FONT_PT - 0.5)
    axes.tick_params(labelsize=FONT_PT - 2)
    drawing = DRAWINGS[panel.kind]
    if any(one.values for one in series):
        drawing(axes, panel, [one for one in series if one.values])
    else:
        draw.empty(axes)


def _start(answered: Answers) -> float:
    times = [answer.times[0] for found in answered.values() for answer in found if answer.times]
    return min(times, default=0.0)


def _named(panel: Panel, answered: Answers, start: float, instance: str) -> list[Named]:
    found: list[Named] = []
    for target in panel.targets:
        for answer in answered.get(concrete(target.expr, instance), ()):
            found.append(_of(answer, target.name(answer.labels) or panel.title, start))
    return found


def _of(answer: Series, name: str, start: float) -> Named:
    return Named(name, [(time - start) / 60 for time in answer.times], list(answer.values))


def _time_series(axes: Axes, panel: Panel, series: list[Named]) -> None:
    if panel.stacked:
        _stack(axes, series)
    else:
        _lines(axes, series)
    _limits(axes, panel)
    _unit(axes, panel.unit)
    _minutes(axes)


def _lines(axes: Axes, series: list[Named]) -> None:
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
    if len(plain) > 1:
        for one, name in _labels(plain):
            _label(axes, name, one.values[-1], colours[one.name])


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


def _label(axes: Axes, name: str, y: float, colour: str) -> None:
    draw.end_label(axes, shortened(name, 2 * LABEL_CHARACTERS), y, colour, LABEL_PT, LABEL_CHARACTERS)


def _colours(series: list[Named]) -> dict[str, str]:
    """A colour for each name; what a name is compared with (`trajectory, chance`) shares its colour."""
    bases = list(dict.fromkeys(_base(one.name) for one in series))
    palette = (*PALETTE, BASELINE)
    return {one.name: palette[bases.index(_base(one.name)) % len(palette)] for one in series}


def _base(name: str) -> str:
    return re.sub(rf",? ?({'|'.join(REFERENCES)})$", "", name)


def _stack(axes: Axes, series: list[Named]) -> None:
    times = sorted({minute for one in series for minute in one.minutes})
    values = [dict(zip(one.minutes, one.values, strict=True)) for one in series]
    rows = [[known.get(minute, 0.0) for minute in times] for known in values]
    colours = [(*PALETTE, BASELINE)[i % (len(PALETTE) + 1)] for i in range(len(series))]
    axes.stackplot(times, rows, colors=colours, alpha=0.75, linewidth=0)
    below = 0.0
    for one, row, colour in zip(series, rows, colours, strict=True):
        if row[-1] > 0:
            _label(axes, one.name, below + row[-1] / 2, colour)
        below += row[-1]


def _stat(axes: Axes, panel: Panel, series: list[Named]) -> None:
    one = series[0]
    axes.axis("off")
    axes.set_title(panel.title, fontsize=FONT_PT - 0.5)
    place = {"transform": axes.transAxes, "ha": "left", "va": "center", "color": BLUE, "weight": "bold"}
    axes.text(0.0, 0.62, written(one.values[-1], panel.unit), fontsize=FONT_PT + 7, **place)
    inner = axes.inset_axes((0.0, 0.0, 1.0, 0.32))
    inner.plot(one.minutes, one.values, color=BLUE, lw=1.1)
    inner.axis("off")


def _heat_map(axes: Axes, panel: Panel, series: list[Named]) -> None:
    """Counts by bucket: the series are cumulative by their upper end, from the least to `+Inf`."""
    ordered = sorted(series, key=lambda one: float(one.name.replace("+Inf", "inf")))
    times = sorted({minute for one in ordered for minute in one.minutes})
    known = [dict(zip(one.minutes, one.values, strict=True)) for one in ordered]
    cumulative = [[values.get(minute, 0.0) for minute in times] for values in known]
    counts = [cumulative[0], *([b - a for a, b in zip(x, y, strict=True)] for x, y in pairwise(cumulative))]
    step = (times[-1] - times[0]) / max(1, len(times) - 1) or 1.0
    edges = [minute - step / 2 for minute in (*times, times[-1] + step)]
    axes.pcolormesh(edges, range(len(counts) + 1), counts, cmap=_sequential(), vmin=0)
    axes.set_yticks([i + 1 for i in range(len(ordered))], [one.name for one in ordered])
    axes.grid(False)
    _minutes(axes)


def _sequential() -> Colormap:
    """From the page's colour to a strong one: nothing is drawn where nothing is."""
    from matplotlib.colors import LinearSegmentedColormap, to_rgba

    return LinearSegmentedColormap.from_list("counts", [to_rgba(BLUE, 0.0), to_rgba(BLUE, 1.0)])


def _state_timeline(axes: Axes, panel: Panel, series: list[Named]) -> None:
    """One row for each series, filled while it is 1."""
    for row, one in enumerate(series):
        step = (one.minutes[-1] - one.minutes[0]) / max(1, len(one.minutes) - 1) or 1.0
        on = [(minute, step * 1.05) for minute, value in zip(one.minutes, one.values, strict=True) if value >= 0.5]
        axes.broken_barh(_merged(on), (row - 0.38, 0.76), color=BLUE, linewidth=0)
    axes.set_yticks(range(len(series)), [one.name.replace("_", " ") for one in series])
    axes.set_ylim(len(series) - 0.5, -0.5)
    axes.tick_params(axis="y", labelcolor=INK)
    _minutes(axes)


def _merged(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for start, length in spans:
        if found and start <= found[-1][0] + found[-1][1]:
            found[-1] = (found[-1][0], start + length - found[-1][0])
        else:
            found.append((start, length))
    return found


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
            _label(axes, one.name.replace("_", " "), points[-1][1], colour)
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
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda minute, _: f"{minute:g} min"))
    axes.grid(False, axis="x")


SCALES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def written(value: float, unit: str) -> str:
    """A value in Grafana's unit, short enough for an axis: `41%`, `2.5 s`, `1.2 GB`, `0.12`."""
    if not math.isfinite(value):
        return "-"
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
