"""What a run is doing until its first step is recorded: on the terminal, and in the run's folder for `status` and
`watch`.

A terminal shows a bar below the lines; elsewhere a line comes at least every `EVERY_S` seconds, whether or not anything
happens, from a thread that waits for nobody and ends with `close`. The folder gets its file only with the first stage
that takes long, so that a refused run leaves none.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn

from squelch.cluster.loop.watchers.watcher import Step, Watcher
from squelch.cluster.runs.starting import Stage, remove_stage, write_stage
from squelch.cluster.terminal import one_line

EVERY_S = 15.0
"""Seconds without a line after which one says what is happening, where there is no bar."""
WRITE_S = 2.0
"""Least seconds between two writes of one stage."""
TICK_S = 0.5


class Startup:
    """The start of the run in `folder`. Any thread may call any method.

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
        self._said = self._written = self.began
        self._in_folder = False
        self._ended = threading.Event()
        self._bar = _bar(screen)
        self._task = self._bar.add_task("", total=None, times="") if self._bar else TaskID(0)
        self._thread = threading.Thread(target=self._tick, daemon=True)
        self._thread.start()

    def say(self, text: str) -> None:
        """Prints a line, above the bar if there is one."""
        with self._lock:
            self._on_bar(Progress.stop)
            self._say(text)
            self._said = self._clock()
            self._on_bar(Progress.start)

    def _on_bar(self, draw: Callable[[Progress], object]) -> None:
        """Draws, if there is a bar; a terminal that is gone has none from then on."""
        if self._bar is not None:
            try:
                draw(self._bar)
            except OSError:
                self._bar = None

    def stage(self, name: str, usual: str = "") -> None:
        """The next stage begins. `usual`: how long it takes as a rule."""
        with self._lock:
            self._stage = Stage(name, self._clock(), usual)
            self._written = 0.0
            self._show()

    def advance(self, detail: str, share: float | None = None) -> None:
        """What happens in the stage at this moment, and how much of it is done; an `OnStage`. The stage takes long, so
        the folder may be written from here on."""
        with self._lock:
            share = None if share is None else min(max(share, 0.0), 1.0)
            self._stage = replace(self._stage, detail=detail, share=share)
            self._require_folder()
            self._show()

    def _require_folder(self) -> None:
        if not self._in_folder and not self._ended.is_set():
            self._begin()
            self._in_folder = True

    def _show(self) -> None:
        now = self._clock()
        if self._in_folder and now - self._written >= WRITE_S:
            with suppress(OSError):  # a disk that is full is named by what needs it
                write_stage(self._folder, self._stage)
            self._written = now
        self._draw(now)

    def _draw(self, now: float) -> None:
        if self._bar is None:
            return
        share = self._stage.share
        total, done = (None, 0.0) if share is None else (1.0, share)
        words, times = one_line(self._stage.words), self._stage.times(now)
        self._on_bar(lambda bar: bar.update(self._task, total=total, completed=done, description=words, times=times))
        self._on_bar(Progress.start)

    def _tick(self) -> None:
        while not self._ended.wait(TICK_S):
            with self._lock:
                now = self._clock()
                if self._bar is not None:
                    self._draw(now)
                elif now - self._said >= EVERY_S and not self._ended.is_set():
                    self.say(f"{self._stage.words} ({self._stage.times(now)})")

    def close(self) -> None:
        """The run has started, or has failed to: removes the bar and the file. May be called again."""
        with self._lock:
            self._ended.set()
            self._on_bar(Progress.stop)
            self._bar = None
            if self._in_folder:
                remove_stage(self._folder)
                self._in_folder = False


def _bar(screen: TextIO | None) -> Progress | None:
    """A bar on the terminal; None if the stream is none, or one that cannot move its cursor."""
    if screen is None or screen.closed:
        return None
    console = Console(file=screen)
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

    async def begin(self, clock: int) -> None:
        """The measurements before the first step are made."""
        self._startup.stage(f"step {clock + 1}")

    def metrics(self, step: Step) -> dict[str, float]:
        """Records nothing."""
        self._startup.close()
        return {}
