"""`squelch watch`: shows a run live in the terminal: state and step, success, what was kept, reasoning metrics, seconds
by part, members and the last event, as `cluster.runs.status_text` words them; outside a terminal a line for each step.
It only reads the run's folder or store (`cluster.runs`).

Invariants:

- The run needs no connection to the watcher, and may be on another machine that shares the folder.
- Nothing waits for the watcher. It waits at most `FOLDER_TIMEOUT_S` for the run's folder, `START_TIMEOUT_S` for its
  first step and `SILENCE_TIMEOUT_S` for each further step; then its error names the run. It ends when the run ends,
  also if that failed or was killed (as far as `cluster.runs.driver` can judge that), or at Ctrl-C.

This module imports neither Ray nor torch.
"""

from __future__ import annotations

import argparse
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from squelch.cluster.commands.arguments import described_place, in_store, named
from squelch.cluster.runs import driver
from squelch.cluster.runs.folder import RunFolder
from squelch.cluster.runs.following import LineFollower
from squelch.cluster.runs.listing import is_run
from squelch.cluster.runs.shapes import check_metrics
from squelch.cluster.runs.status import Line, RunStatus, is_scorer_step_alone, status_of
from squelch.cluster.runs.status_text import finding_words, headline, is_late, sparkline, status_rows, step_text
from squelch.kit.archive.reader import EVENTS, METRICS
from squelch.kit.archive.store import Stat, Store
from squelch.kit.base.errors import UserError, bad_files_are_the_users
from squelch.kit.process.signals import Interrupted
from squelch.kit.process.terminal import duration, one_line, say
from squelch.kit.untrusted.memory import memory_of_at_most

FOLDER_TIMEOUT_S = 60.0
"""Seconds after which the watcher gives up a run without a folder, which `squelch train` makes after its checks."""
START_TIMEOUT_S = 1800.0
"""Seconds without a step and without anything new from the start-up after which the watcher gives up."""
SILENCE_TIMEOUT_S = 3600.0
"""Seconds without a new step after which the watcher gives up."""


def run(options: argparse.Namespace) -> int:
    """Shows the run until it ends; one that was started a moment ago, as soon as it has a folder."""
    _await_folder(options.run_dir)
    watch(described_place(named(options.run_dir)))
    return 0


def _await_folder(place: str, interval_s: float = 0.5) -> None:
    waited = 0.0
    while not in_store(place) and _may_begin(Path(named(place))) and waited < FOLDER_TIMEOUT_S:
        if not waited:
            say(f"{place} is no run yet; waiting up to {duration(FOLDER_TIMEOUT_S)} for its start")
        time.sleep(interval_s)
        waited += interval_s


def _may_begin(folder: Path) -> bool:
    """Whether the folder is still to be made, or its driver has just made it."""
    return not is_run(folder) and (not folder.exists() or (folder / driver.FILE).exists())


def view(status: RunStatus, lines: Sequence[Line]) -> RenderableType:
    """The live view: headline, progress bar, and metrics with their history."""
    table = Table.grid(padding=(0, 2))
    progress = Table.grid(expand=True)  # a bar outside a table prints no line end
    for row in status_rows(status, lines):
        spark = sparkline(row.history, row.low, row.high)
        table.add_row(Text(row.name, style="bold"), Text(one_line(row.value)), Text(spark, style="cyan"))
    progress.add_row(ProgressBar(total=max(status.total_steps, 1), completed=status.step))
    failed = status.stopped or status.state == "ended"
    style = "red" if failed else "green" if status.state == "finished" else "blue"
    return Panel(Group(progress, table), title=Text(one_line(headline(status))), border_style=style)


def watch(
    place: Path | str | Store,
    *,
    interval_s: float = 1.0,
    console: Console | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Shows a run until it ends or until Ctrl-C: a live view on a terminal, one line per step elsewhere.

    Raises:
        UserError: the folder does not exist, or no new step appeared within this module's time-outs.
    """
    folder, console = RunFolder(place).require(), console or Console()
    try:
        if not console.is_terminal:
            return _follow(folder, _LinePrinter(console), interval_s, sleep)
        with Live(console=console, auto_refresh=False) as live:
            _follow(folder, lambda s, lines: live.update(view(s, lines), refresh=True), interval_s, sleep)
    except KeyboardInterrupt as stop:
        console.print("stopped watching; the run continues")
        if isinstance(stop, Interrupted) and stop.signal is not signal.SIGINT:
            raise


class _LinePrinter:
    """Prints one line for each step that is new since the last call, each finding when it begins or worsens, and the
    headline when the state changes or the next step becomes late."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown = -1
        self._state = ""
        self._late = False
        self._stage = ""
        self._found = set[tuple[str, str]]()

    def __call__(self, status: RunStatus, lines: Sequence[Line]) -> None:
        for line in lines:
            if line["step"] > self._shown and not is_scorer_step_alone(line):
                self._shown = line["step"]
                self._say(step_text(line))
        now = {(one["name"], one["severity"]): one for one in status.findings}
        for key in now.keys() - self._found:
            self._say(f"finding: {finding_words(now[key])}")
        self._found = set(now)
        late = is_late(status)
        stage = (status.starting or "").partition(":")[0]
        if status.state != self._state or stage != self._stage or (late and not self._late):
            self._say(headline(status))
        self._state, self._stage, self._late = status.state, stage, late

    def _say(self, text: str) -> None:
        self._console.print(one_line(text), markup=False, highlight=False, soft_wrap=True)


def _follow(
    folder: RunFolder,
    show: Callable[[RunStatus, Sequence[Line]], None],
    interval_s: float,
    sleep: Callable[[float], None],
) -> None:
    """Shows the run at each interval until it ends; reads the new lines of `metrics.jsonl` when the file has
    changed."""
    follower, where = LineFollower(folder.store, METRICS), folder.store.where(METRICS)
    seen: Stat | None = None
    lines: list[dict[str, Any]] = []
    waited, stage = 0.0, None
    while True:
        stamp = folder.metrics_stamp()
        if stamp != seen:
            with bad_files_are_the_users(), memory_of_at_most(folder.store.where()):
                void, found = follower.news()
                lines, new = [] if void else lines, list(found)
                check_metrics(new, where, len(lines) + 1)
            seen, lines, waited = stamp, [*lines, *new], 0.0
        now = status_of(folder, lines, time.time())
        if now.starting != stage:
            stage, waited = now.starting, 0.0
        show(now, lines)
        if now.state in ("finished", "stopped", "ended"):
            return
        _bound(folder, now, waited)
        sleep(interval_s)
        waited += interval_s


def _bound(folder: RunFolder, status: RunStatus, waited: float) -> None:
    limit = START_TIMEOUT_S if status.state == "starting" else SILENCE_TIMEOUT_S
    if waited > limit:
        what = "its first step" if status.state == "starting" else f"the step after {status.step}"
        raise UserError(
            f"{folder.store.where()}: the run has not finished {what}: no new line in {METRICS} for "
            f"{duration(waited)} (last finished: {status.last_event or f'nothing in {EVENTS}'}). Check whether its "
            "process still runs."
        )
