"""The last values of each metric, and the first ones, as levels read them. Pure; plain JSON state."""

from __future__ import annotations

import math
import statistics
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

WINDOW = 40
"""Known values of a key that are held."""
FIRST = 10
"""Known values of a key, from the first on, whose median is its level at the start."""


class History:
    """The metrics that levels ask for. A key is known in a step if its value is finite; it is held from the first step
    in which a level asks for it. `most`: steps that suffice for a threshold and a recent value, where there are few."""

    def __init__(self, most: int = sys.maxsize) -> None:
        self.most = most
        self.step = 0
        """The newest step."""
        self._newest: dict[str, float] = {}
        self._held: dict[str, deque[tuple[float, float]]] = {}
        self._first: dict[str, list[float]] = {}

    def add(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Adds a step's flat metrics; an unknown one is None or NaN."""
        self.step = step
        self._newest = {
            key: float(value) for key, value in metrics.items() if value is not None and math.isfinite(value)
        }
        for key, held in self._held.items():
            if key in self._newest:
                held.append((float(step), self._newest[key]))
                if len(self._first[key]) < FIRST:
                    self._first[key].append(self._newest[key])

    def now(self, key: str) -> float | None:
        """The newest step's value; None if it is not known."""
        return self._newest.get(key)

    def newest(self, prefix: str) -> dict[str, float]:
        """The newest step's known values of the keys that begin so, by the rest of the key."""
        return {key.removeprefix(prefix): value for key, value in self._newest.items() if key.startswith(prefix)}

    def points(self, key: str, steps: int = WINDOW) -> list[tuple[float, float]]:
        """(step, value) of the last so many steps in which the key is known, oldest first."""
        if key not in self._held:
            now = self._newest.get(key)
            known = [] if now is None else [(float(self.step), now)]
            self._held[key], self._first[key] = deque(known, maxlen=WINDOW), [value for _, value in known]
        return list(self._held[key])[-steps:]

    def last(self, key: str, steps: int = WINDOW) -> list[float]:
        """As `points`, the values alone."""
        return [value for _, value in self.points(key, steps)]

    def recent(self, key: str, steps: int = 5) -> float | None:
        """The median of the last so many known values; None before there are so many, or if the newest step has none:
        a level is of the newest step."""
        steps = min(steps, self.most)
        values = self.last(key, steps)
        return statistics.median(values) if len(values) == steps and self.now(key) is not None else None

    def early(self, key: str) -> float | None:
        """The median of the first `FIRST` known values; None before there are so many."""
        self.points(key)
        values = self._first[key]
        return statistics.median(values) if len(values) == FIRST else None

    def change(self, key: str, steps: int = 5) -> float | None:
        """The recent value as a share of the early one; None where either is not known, or the early one is not above
        0."""
        early, recent = self.early(key), self.recent(key, steps)
        return recent / early if early and early > 0 and recent is not None else None

    def state(self) -> dict[str, Any]:
        """For the checkpoint; plain JSON."""
        held = {key: [list(point) for point in points] for key, points in self._held.items()}
        return {"step": self.step, "held": held, "first": {key: list(values) for key, values in self._first.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores the state from a checkpoint."""
        self.step, self._newest = state["step"], {}
        self._held = {
            key: deque(((step, value) for step, value in points), maxlen=WINDOW)
            for key, points in state["held"].items()
        }
        self._first = {key: list(values) for key, values in state["first"].items()}


def slope(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(slope, its standard error) of the least-squares line through (x, y) points; (0, inf) below 3 of them."""
    if len(points) < 3:
        return 0.0, math.inf
    x_mean, y_mean = (statistics.fmean(values) for values in zip(*points, strict=True))
    spread = math.fsum((x - x_mean) ** 2 for x, _ in points)
    found = math.fsum((x - x_mean) * (y - y_mean) for x, y in points) / spread
    left = math.fsum((y - y_mean - found * (x - x_mean)) ** 2 for x, y in points)
    return found, math.sqrt(left / (len(points) - 2) / spread)
