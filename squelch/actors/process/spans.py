"""Spans: intervals in which an actor worked, so that a run can separate work from waiting. Pure."""

from __future__ import annotations

import time
from collections import deque

KEPT = 20_000
Span = tuple[float, float]


class Spans:
    """Intervals (start, end), Unix seconds, in which at least one piece of work was in progress. Threads may call `add`
    concurrently; only one thread may call `begin` and `end`. Only the newest `KEPT` intervals are kept."""

    def __init__(self) -> None:
        self._done: deque[Span] = deque(maxlen=KEPT)
        self._under_way = 0
        self._since = 0.0

    def begin(self) -> None:
        """Notes that one more piece of work has started."""
        if self._under_way == 0:
            self._since = time.time()
        self._under_way += 1

    def end(self) -> None:
        """Notes that one piece of work has ended."""
        self._under_way -= 1
        if self._under_way == 0:
            self.add(self._since, time.time())

    def add(self, start: float, end: float) -> None:
        """Records an interval that has ended."""
        self._done.append((start, end))

    def take(self) -> list[Span]:
        """Intervals since the last call; an open interval is split here, and its rest is part of the next call."""
        now = time.time()
        if self._under_way:
            self.add(self._since, now)
            self._since = now
        return [self._done.popleft() for _ in range(len(self._done))]
