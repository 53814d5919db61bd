"""Spans: when something was under way in an actor, so that a run can tell work from waiting. Pure."""

from __future__ import annotations

import time
from collections import deque

KEPT = 20_000
Span = tuple[float, float]


class Spans:
    """Intervals (start, end), unix seconds, in which at least one thing was under way. Safe to use from threads that
    each add whole intervals; `begin` and `end` belong to one thread. The oldest are dropped beyond `KEPT`."""

    def __init__(self) -> None:
        self._done: deque[Span] = deque(maxlen=KEPT)
        self._under_way = 0
        self._since = 0.0

    def begin(self) -> None:
        """One more thing is under way."""
        if self._under_way == 0:
            self._since = time.time()
        self._under_way += 1

    def end(self) -> None:
        """One thing less is under way."""
        self._under_way -= 1
        if self._under_way == 0:
            self.add(self._since, time.time())

    def add(self, start: float, end: float) -> None:
        """An interval that has passed."""
        self._done.append((start, end))

    def take(self) -> list[Span]:
        """Intervals since the last call; one still open is cut here and goes on in the next."""
        now = time.time()
        if self._under_way:
            self.add(self._since, now)
            self._since = now
        return [self._done.popleft() for _ in range(len(self._done))]
