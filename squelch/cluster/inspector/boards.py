"""The dashboards' panels over the run, drawn on the server from the answers of a Prometheus.

A panel is drawn when a reader sees it: the page asks for the panels in its window, one after the other, and while the
run lives again every `REFRESH_S`. Drawings are kept by panel and stretch of time; a live stretch ends at a multiple of
`REFRESH_S`, so that several readers cost as much as one. A Prometheus that does not answer is not asked again for
`REFRESH_S`.

    waits            for                     bound, and what then
    a panel          the drawing before it   one at a time; as long as that one's queries and drawing
    a drawing        each query              `cluster.grafana.prometheus.TIMEOUT_S`; the panel shows the error
"""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from squelch.cluster.grafana.boards import Board, Panel, shipped
from squelch.cluster.grafana.prometheus import Prometheus, Span
from squelch.cluster.plots.panels import Answered, Values, ask, one_panel, values
from squelch.cluster.plots.step_axis import StepClock
from squelch.kit.base.errors import UserError
from squelch.kit.untrusted.files import brief

REFRESH_S = 15.0
MOST_DRAWINGS = 200
"""Drawings that are kept, of some 50 KB each."""
LEAD_S = 30.0
"""Seconds that are shown before the first record of a run and after the last one of a run that is over."""
SILENT_S = 1800.0
"""Seconds without a record after which a run counts as over, whatever its folder says: it was killed."""
WINDOWS: Mapping[str, float | None] = {"all": None, "15m": 900.0, "1h": 3600.0, "6h": 21600.0}
"""Stretches of time that a reader can choose, in seconds before the newest value."""
AXES = ("time", "steps")
"""What the panels can be drawn over."""
FIRST = "reasoning"
"""The dashboard that is shown first."""


@dataclass(frozen=True)
class Recorded:
    """The recorded part of a run: the times of its first and newest record, unix seconds, whether it is live, and
    (step, time) of its records. Before its first record both times are now."""

    first: float
    newest: float
    live: bool
    times: Sequence[tuple[int, float]] = ()


@dataclass(frozen=True)
class Drawn:
    """A panel: its drawing, an `<svg>` element, and its table."""

    svg: str
    values: Sequence[Values]


class Boards:
    """The dashboards over one run. `prometheus`: None if none was given. Threads may share it."""

    def __init__(self, run: str, prometheus: Prometheus | None, now: Callable[[], float] = time.time) -> None:
        self.run, self.prometheus, self.now = run, prometheus, now
        self.boards = dict(sorted(shipped().items(), key=lambda item: item[0] != FIRST))
        self._lock = threading.Lock()
        self._drawings: OrderedDict[tuple[object, ...], Drawn] = OrderedDict()
        self._marks: Answered | None = None
        self._down: tuple[float, str] = (0.0, "")

    def board(self, name: str) -> Board:
        """A dashboard by its name. UserError for an unknown one."""
        if name not in self.boards:
            raise UserError(f"`board` is {brief(name)} in the address; it must be one of: {', '.join(self.boards)}")
        return self.boards[name]

    def panel(self, name: str, number: int, recorded: Recorded, window: str = "all", axis: str = "time") -> Drawn:
        """A panel over time or steps. UserError without a Prometheus, if it has nothing of the run, or if the address
        names no such panel. A run of fewer than two steps is drawn over time."""
        board = self.board(name)
        if number >= len(board.panels):
            raise UserError(f"`panel` is {number} in the address; the board {name} has {len(board.panels)} panels")
        span = self.span(recorded, window)
        clock = StepClock.of(recorded.times, span.start) if axis_of(axis) == "steps" else None
        key = (name, number, span, clock is not None)
        with self._lock:
            if key not in self._drawings:
                self._drawings[key] = self._drawn(board, board.panels[number], span, clock)
                while len(self._drawings) > MOST_DRAWINGS:
                    self._drawings.popitem(last=False)
            return self._drawings[key]

    def span(self, recorded: Recorded, window: str) -> Span:
        """The stretch of time that is shown. UserError for an unknown window."""
        if window not in WINDOWS:
            raise UserError(f"`window` is {brief(window)} in the address; it must be one of: {', '.join(WINDOWS)}")
        now, seconds = self.now(), WINDOWS[window]
        live = recorded.live and now - recorded.newest < SILENT_S
        end = now // REFRESH_S * REFRESH_S if live else recorded.newest + LEAD_S
        start = recorded.first - LEAD_S
        return Span(start if seconds is None else max(start, end - seconds), end)

    def _drawn(self, board: Board, panel: Panel, span: Span, clock: StepClock | None) -> Drawn:
        if self.prometheus is None:
            raise UserError("no Prometheus was given")
        since, said = self._down
        if self.now() - since < REFRESH_S:
            raise UserError(said)
        try:
            shared = self._shared(self.prometheus, board, span)
            wanted = [shared.chosen.fill(target.expr) for target in panel.targets]
            answered = ask(self.prometheus, wanted, span, shared.chosen)
        except UserError as error:
            self._down = self.now(), str(error)
            raise
        answered = replace(answered, series={**shared.series, **answered.series})
        return Drawn(one_panel(board, panel, answered, clock), values(panel, answered))

    def _shared(self, prometheus: Prometheus, board: Board, span: Span) -> Answered:
        """The context that all panels of a stretch of time share: Grafana's variables for this run, and the marks,
        which each board has alike. UserError if Prometheus saw no such run."""
        if self._marks is None or self._marks.span != span:
            chosen = prometheus.chosen(self._instance(prometheus, span), span)
            self._marks = ask(prometheus, [chosen.fill(mark.expr) for mark in board.marks], span, chosen)
        return self._marks

    def _instance(self, prometheus: Prometheus, span: Span) -> str:
        """Regular expression of the addresses at which Prometheus saw the run."""
        name = self.run.replace("\\", "\\\\").replace('"', '\\"')
        found = prometheus.over(f'squelch_run_info{{run="{name}"}}', span)
        addresses = sorted({series.labels.get("instance", "") for series in found})
        if not addresses:
            raise UserError(
                f"the Prometheus at {prometheus.url} has nothing of a run named {brief(self.run)} from this time; "
                "does it scrape the run's metrics (deploy/prometheus.yml)?"
            )
        return "|".join(re.escape(address) for address in addresses).replace("\\", "\\\\")


def axis_of(text: str) -> str:
    """What the panels are drawn over. UserError for an unknown axis."""
    if text not in AXES:
        raise UserError(f"`axis` is {brief(text)} in the address; it must be one of: {', '.join(AXES)}")
    return text
