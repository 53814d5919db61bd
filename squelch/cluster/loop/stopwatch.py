"""Seconds between moments, by the wall clock: metrics and spans are in unix seconds."""

from __future__ import annotations

import time


class Stopwatch:
    """Runs from its creation on."""

    def __init__(self) -> None:
        self.last = time.time()
        """When the present lap began, unix seconds."""

    def lap(self) -> float:
        """Ends the present lap; its seconds. The next begins."""
        before, self.last = self.last, time.time()
        return self.last - before
