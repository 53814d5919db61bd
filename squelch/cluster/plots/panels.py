"""Draws the panels of a dashboard from the answers of a Prometheus, as Grafana would place them. Pure.

    one_panel    a panel as an SVG of its own, for a page that places it (`squelch inspect`)
    values       what a panel shows as a table, for the same page
    picture      rows of a dashboard as one SVG, for the docs

The table of `cluster.plots.panel_drawings` says how each type of panel is drawn. A panel without a value says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

from squelch.cluster.grafana.boards import COLUMNS, EVERYTHING, Board, Chosen, Panel, Row
from squelch.cluster.plots import draw
from squelch.cluster.plots.panel_drawings import COLOURS, Marked, Named, by_bucket, draw_panel, stretches, written
from squelch.cluster.plots.step_axis import StepClock
from squelch.cluster.plots.style import FONT_PT, WIDTH, render
from squelch.kit.untrusted.files import shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from squelch.cluster.grafana.prometheus import Prometheus, Series, Span

CELL_HEIGHT, ROW_TITLE, TITLE, MARGIN, KEY = 0.25, 0.42, 0.3, 0.08, 0.3
"""Inches: of one row of Grafana's grid, of a row's title, of a panel's title, around the page, of the key of marks."""
ROOM = {
    "timeseries": (0.5, 1.02, 0.3),
    "stat": (0.1, 0.1, 0.1),
    "heatmap": (0.5, 0.25, 0.3),
    "state-timeline": (1.05, 0.25, 0.55),
    "xychart": (0.62, 0.9, 0.5),
}
"""Inches left of the axes, right of it (for labels at lines' ends) and below it, by type of panel."""
LONGEST_TITLE = 44
ALONE = 1.25
"""Size of a panel of its own as a multiple of its size in a picture: a screen has more room than a page of the docs."""
Answers = Mapping[str, "Sequence[Series]"]
"""The series of each expression, as `cluster.grafana.prometheus.Prometheus.over` answers them."""


@dataclass(frozen=True)
class Answered:
    """A Prometheus's answers for a dashboard, or of some of its panels. `chosen`: Grafana's variables as they were
    asked; `span`: the time that is shown."""

    series: Answers
    chosen: Chosen
    span: Span

    @property
    def minutes(self) -> float:
        """Length of the axes of time, which begin at 0."""
        return (self.span.end - self.span.start) / 60

    def named(self, panel: Panel) -> list[Named]:
        """The panel's series under the names of its legends."""
        return [
            self._named(one, target.name(one.labels) or panel.title)
            for target in panel.targets
            for one in self.series.get(self.chosen.fill(target.expr), ())
        ]

    def marks(self, board: Board) -> list[Marked]:
        """The kinds of events that happened, with the times of each."""
        found = []
        for mark in board.marks:
            times = sorted({m for one in self.series.get(self.chosen.fill(mark.expr), ()) for m in self._on(one)})
            if times:
                found.append(Marked(mark.name, mark.colour, stretches(times, self.span.step / 60)))
        return found

    def _named(self, one: Series, name: str) -> Named:
        return Named(name, [(time - self.span.start) / 60 for time in one.times], list(one.values))

    def _on(self, one: Series) -> list[float]:
        return [(time - self.span.start) / 60 for time, value in zip(one.times, one.values, strict=True) if value > 0]


def ask(prometheus: Prometheus, wanted: Iterable[str], span: Span, chosen: Chosen = EVERYTHING) -> Answered:
    """The answers of a Prometheus to these expressions, in which `chosen` is filled in. UserError if none answers."""
    return Answered({expr: prometheus.over(expr, span) for expr in wanted}, chosen, span)


def one_panel(board: Board, panel: Panel, answered: Answered, clock: StepClock | None = None) -> str:
    """The drawing of one panel, an `<svg>` element through which the page's own background is seen. `clock`: draws it
    over steps instead of time."""

    def drawn() -> Figure:
        from matplotlib.figure import Figure

        wide, high = (ALONE * inches for inches in _size(panel))
        figure = Figure(figsize=(wide, high), facecolor="none")
        _place(figure, Box(0.0, high, wide, high), panel, answered, answered.marks(board), clock)
        return draw.finish(figure)

    return render(f"{board.uid}-{board.panels.index(panel)}", panel.title, panel.help, drawn)


@dataclass(frozen=True)
class Values:
    """A line of a panel's table: a series, its last, smallest and largest value and their mean, in the panel's unit.
    Of a state there is only the last."""

    name: str
    last: str
    least: str = ""
    most: str = ""
    mean: str = ""


def values(panel: Panel, answered: Answered) -> list[Values]:
    """The table of a panel, in the order of its queries."""
    known = [one for one in answered.named(panel) if one.values]
    if panel.kind == "state-timeline":
        states = [panel.states.get(round(one.values[-1])) for one in known]
        return [Values(one.name, state.text if state else "") for one, state in zip(known, states, strict=True)]
    if panel.kind == "heatmap" and known:
        known = [replace(one, name=f"\u2264 {one.name}") for one in by_bucket(known)]
    return [
        Values(
            one.name,
            *(
                written(value, panel.unit)
                for value in (one.values[-1], min(one.values), max(one.values), fmean(one.values))
            ),
        )
        for one in known
    ]


def picture(board: Board, answered: Answered, rows: Sequence[Row]) -> str:
    """Rows of a board as one `<svg>` element with the committed layout."""
    marks = answered.marks(board)

    def drawn() -> Figure:
        from matplotlib.figure import Figure

        high = sum(row.height * CELL_HEIGHT + ROW_TITLE for row in rows) + (KEY if marks else 0.0)
        figure, top = Figure(figsize=(WIDTH, high)), high
        for row in rows:
            figure.text(MARGIN / WIDTH, (top - 0.24) / high, row.title, weight="bold", fontsize=FONT_PT + 2.5)
            top -= ROW_TITLE
            for panel in row.panels:
                box = Box(WIDTH * panel.x / COLUMNS, top - CELL_HEIGHT * (panel.y - row.panels[0].y), *_size(panel))
                _place(figure, box, panel, answered, marks)
            top -= row.height * CELL_HEIGHT
        _key(figure, marks)
        return draw.finish(figure)

    return render(board.uid, f"Dashboard {board.title}: {board.question}", _description(rows), drawn)


def _key(figure: Figure, marks: Sequence[Marked]) -> None:
    """The meaning of the marks' colours, at the lower edge of the picture."""
    from matplotlib.lines import Line2D

    if marks:
        handles = [Line2D([], [], marker="^", ls="", ms=6, color=COLOURS[m.colour], label=m.name) for m in marks]
        figure.legend(handles=handles, loc="lower left", ncols=len(marks), frameon=False, handletextpad=0.1)


def _place(
    figure: Figure,
    box: Box,
    panel: Panel,
    answered: Answered,
    marks: Sequence[Marked],
    clock: StepClock | None = None,
) -> None:
    """Draws a panel with its title in a box."""
    wide, high = figure.get_size_inches()
    title = {"weight": "bold", "fontsize": FONT_PT - 0.5, "va": "top"}
    figure.text((box.left + MARGIN) / wide, (box.top - MARGIN) / high, shortened(panel.title, LONGEST_TITLE), **title)
    draw_panel(box.axes(figure, panel.kind), panel, answered.named(panel), marks, answered.minutes, clock)


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


def _description(rows: Sequence[Row]) -> str:
    return " ".join(f"{panel.title}: {panel.help}" for row in rows for panel in row.panels)
