"""Operations on intervals of time (start, end), in seconds. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable


def union_seconds(intervals: Iterable[tuple[float, float]]) -> float:
    """Length of the union of (start, end) intervals, seconds."""
    total, reach = 0.0, -math.inf
    for start, end in sorted(intervals):
        if end > reach:
            total += end - max(start, reach)
            reach = end
    return total


def clip_intervals(intervals: Iterable[tuple[float, float]], start: float, end: float) -> list[tuple[float, float]]:
    """The parts of the intervals inside [start, end]."""
    clipped = ((max(a, start), min(b, end)) for a, b in intervals)
    return [(a, b) for a, b in clipped if b > a]
