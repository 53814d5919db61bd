"""Progress marks of an actor: one for each small part of its work, to distinguish a slow actor from a hung one.

    actor                a mark is
    learner rank         a forward, or forward and backward, pass of a micro-batch
    rollout worker       a step of its engine, which samples a token for each running request
    scorer               a batch of scored tokens
    environment actor    an environment call that ended
    filter service       none: its calls are short

The threads that work add marks, and another thread or task of the same process reads them, so that an actor can be
asked for its progress in the middle of a call. On a GPU a learner's mark says that the work was queued; CUDA's launch
queue holds about one micro-batch, so that marks run ahead of the device by no more than that. `waited_s` is read with
them: time for which the process had no processor is not held against it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from statistics import median

from squelch.kit.process import compilations
from squelch.kit.process.processor_wait import ProcessorWait

WATCHING = {"watch": 2}
"""Ray's concurrency group of an actor's `live` and `progress`, each with a thread, so that both are answered in the
middle of another call."""
KEPT = 101
"""Number of the latest intervals between marks that the median is taken of."""


@dataclass(frozen=True)
class Progress:
    """Progress of one process. `marks`: number since its start; `median_s`: median seconds between two marks of one
    call, 0 before the first; `busy`: whether it has work that should add marks; `waited_s`: seconds for which it waited
    for a processor (`ProcessorWait`)."""

    marks: int
    median_s: float
    busy: bool = True
    waited_s: float = 0.0


IDLE = Progress(0, 0.0, busy=False)
"""Progress of an actor without marks: any answer counts as progress."""


class Marks:
    """Counts the marks of one process. `of_child`: whether a child process does the work, so that only its waits for a
    processor are reported."""

    def __init__(self, of_child: bool = False) -> None:
        self._count, self._last = 0, time.monotonic()
        self._adding = threading.Lock()
        self._wait = ProcessorWait(itself=not of_child)
        self._intervals: deque[float] = deque(maxlen=KEPT)

    def begin(self) -> None:
        """Begins a call: the time since the previous call is no interval between marks."""
        self._last = time.monotonic()

    def add(self) -> None:
        """Marks the end of one part. Any thread may call this."""
        with self._adding:
            now = time.monotonic()
            self._intervals.append(now - self._last)
            self._count, self._last = self._count + 1, now

    def seen(self, busy: bool = True) -> Progress:
        """The progress so far. A process that compiles code is not busy: no mark is expected of it meanwhile."""
        intervals, busy = list(self._intervals), busy and not compilations.under_way()
        return Progress(self._count, median(intervals) if intervals else 0.0, busy, self._wait.seconds())
