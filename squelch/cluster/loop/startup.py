"""What a run is doing: on the terminal, and until its first step is recorded in the run's folder for `status` and
`watch`.

    output                      until the first step is recorded    from then on
    terminal, in the foreground a bar below the lines               the same
    other terminal              a line every `EVERY_S` seconds      the same
                                without one
    file or pipe                the same                            nothing: one line a step

A thread that waits for nobody does that, whether or not anything happens, and ends with `close`. The folder gets its
file only with the first stage that takes long, so that a refused run leaves none.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn

from squelch.cluster.loop.persistence.run_log import Counted, Work
from squelch.cluster.loop.watchers.watcher import Step, Watcher
from squelch.cluster.runs.starting import Stage, remove_stage, write_stage
from squelch.kit.process.terminal import EVERY_S, one_line

WRITE_S = 2.0
"""Least seconds between two writes of one stage."""
TICK_S = 0.5


class Startup:
    """What the run in `folder` does, from its start on. Any thread may call any method.

    Args:
        say: prints a line. screen: the stream that it prints to; a bar is drawn there if it is a terminal.
        begin: called before the first file is written; makes the folder this process's.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        screen: TextIO | None,
        folder: Path,
        begin: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.began = clock()
        """Unix seconds."""
        self._say, self._folder, self._begin, self._clock = say, folder, begin, clock
        self._lock = threading.RLock()
        self._stage = Stage("checking the settings", self.began)
        self._kept: Stage | None = None
        """The stage in the folder's file."""
        self._counted: Counted | None = None
        self._said = self._written = self.began
        self._in_folder = self._trains = False
        self._ended = threading.Event()
        self._terminal = screen if screen is not None and not screen.closed and screen.isatty() else None
        self._bar = _bar(screen)
        self._task = self._bar.add_task("", total=None, times="") if self._bar else TaskID(0)
        self._thread = threading.Thread(target=self._tick, daemon=True)
        self._thread.start()

    def say(self, text: str) -> None:
        """Prints a line, above the bar if there is one."""
        with self.paused():
            self._say(text)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within the block lines may be printed where the bar is."""
        with self._lock:
            self._on_bar(Progress.stop)
            try:
                yield
            finally:
                self._said = self._clock()
                if self._has_terminal():
                    self._on_bar(Progress.start)

    def _has_terminal(self) -> bool:
        """Whether the bar may be drawn: a shell's job in the background would overwrite what its user types."""
        if self._terminal is None:
            return False
        try:
            return os.tcgetpgrp(self._terminal.fileno()) == os.getpgrp()
        except (OSError, ValueError):  # the terminal of no session, as in a test, or one that is gone
            return True

    def _on_bar(self, draw: Callable[[Progress], object]) -> None:
        """Draws, if there is a bar; a terminal that is gone has none from then on."""
        if self._bar is not None:
            try:
                draw(self._bar)
            except OSError:
                self._bar = None

    def stage(self, name: str, usual: str = "", counted: Counted | None = None, since: float | None = None) -> None:
        """The next stage begins. `usual`: how long it takes as a rule; `since`: unix seconds, now by default."""
        with self._lock:
            self._stage, self._counted = Stage(name, since or self._clock(), usual), counted
            self._written = 0.0
            self._show()

    def work(self, work: Work) -> None:
        """Shows the work of the training loop as a stage."""
        self.stage(work.what, counted=work.counted, since=work.since)

    def trains(self) -> None:
        """The first step is recorded: the folder's file is removed, and a file or pipe gets the run's own lines
        alone."""
        with self._lock:
            self._trains = True
            self._leave_folder()

    def advance(self, detail: str, share: float | None = None) -> None:
        """What happens in the stage at this moment, and how much of it is done; an `OnStage`. The stage takes long, so
        the folder may be written from here on."""
        with self._lock:
            share = None if share is None else min(max(share, 0.0), 1.0)
            self._stage = replace(self._stage, detail=detail, share=share)
            self._require_folder()
            self._show()

    def _require_folder(self) -> None:
        if not self._in_folder and not self._trains and not self._ended.is_set():
            self._begin()
            self._in_folder = True

    def _show(self) -> None:
        now = self._clock()
        if self._counted is not None:
            done, total, of = self._counted()
            detail = f"{done} of {total} {of}" if total else f"{done} {of}"
            self._stage = replace(self._stage, detail=detail, share=min(done / total, 1.0) if total else None)
        if self._in_folder and self._stage != self._kept and now - self._written >= WRITE_S:
            with suppress(OSError):  # a disk that is full is named by what needs it
                write_stage(self._folder, self._stage)
            self._written, self._kept = now, self._stage
        self._draw(now)

    def _draw(self, now: float) -> None:
        if self._bar is None or not self._has_terminal():
            return
        share = self._stage.share
        total, done = (None, 0.0) if share is None else (1.0, share)
        words, times = one_line(self._stage.words), self._stage.times(now)
        self._on_bar(lambda bar: bar.update(self._task, total=total, completed=done, description=words, times=times))
        self._on_bar(Progress.start)

    def _tick(self) -> None:
        while not self._ended.wait(TICK_S):
            with self._lock:
                if self._ended.is_set():
                    return
                self._show()
                now, is_drawn = self._clock(), self._bar is not None and self._has_terminal()
                if not is_drawn:
                    self._on_bar(Progress.stop)
                speaks = self._terminal is not None or not self._trains
                if speaks and not is_drawn and now - self._said >= EVERY_S:
                    self.say(f"{self._stage.words} ({self._stage.times(now)})")

    def close(self) -> None:
        """The run has ended, or has failed to start: removes the bar and the file. May be called again."""
        with self._lock:
            self._ended.set()
            self._on_bar(Progress.stop)
            self._bar = None
            self._leave_folder()

    def _leave_folder(self) -> None:
        if self._in_folder:
            remove_stage(self._folder)
            self._in_folder = False


class _Console(Console):
    """Shows the cursor all the time: a process that is killed, or stopped by Ctrl-Z, could not show it again."""

    def show_cursor(self, show: bool = True) -> bool:
        """Changes nothing."""
        return False


def _bar(screen: TextIO | None) -> Progress | None:
    """A bar on the terminal; None if the stream is none, or one that cannot move its cursor."""
    if screen is None or screen.closed:
        return None
    console = _Console(file=screen)
    if not console.is_terminal or console.is_dumb_terminal:
        return None
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(24),
        TextColumn("{task.fields[times]}", markup=False, style="dim"),
        console=console,
        transient=True,
        refresh_per_second=4,
        redirect_stdout=False,
        redirect_stderr=False,
    )


class FirstStep(Watcher):
    """Ends the start-up with the record of the first step. The last of the watchers."""

    def __init__(self, startup: Startup) -> None:
        self._startup = startup

    def metrics(self, step: Step) -> dict[str, float]:
        """Records nothing."""
        self._startup.trains()
        return {}
