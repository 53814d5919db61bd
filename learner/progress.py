"""Progress marks of a learner rank: one for each forward, or forward and backward, pass of a micro-batch.

The thread that trains adds marks, and another thread of the same process reads them, so that a rank can be asked for
its progress in the middle of a step. On a GPU a mark says that the work was queued; CUDA's launch queue holds about one
micro-batch, so that marks run ahead of the device by no more than that.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from statistics import median

KEPT = 101
"""Number of the latest intervals between marks that the median is taken of."""


@dataclass(frozen=True)
class RankProgress:
    """Progress of one rank. `marks`: number since its start; `median_s`: median seconds between two marks of one call,
    0 before the first."""

    marks: int
    median_s: float


class Marks:
    """Counts the marks of one rank."""

    def __init__(self) -> None:
        self._count, self._last = 0, time.monotonic()
        self._intervals: deque[float] = deque(maxlen=KEPT)

    def begin(self) -> None:
        """Begins a call: the time since the previous call is no interval between marks."""
        self._last = time.monotonic()

    def add(self) -> None:
        """Marks the end of one pass."""
        now = time.monotonic()
        self._intervals.append(now - self._last)
        self._count, self._last = self._count + 1, now

    def seen(self) -> RankProgress:
        """The progress so far."""
        intervals = list(self._intervals)
        return RankProgress(self._count, median(intervals) if intervals else 0.0)
