"""MI, D, kept share and success of each kind of task and of each turn (`cluster.runs.by_kind_and_turn`), over the
run's steps.

Values are kept by part and column as two arrays of numbers, so that a long run costs some megabytes; a run's file may
be hostile, so at most `MOST_PARTS` parts of a dimension are kept. Pure.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from squelch.cluster.runs.by_kind_and_turn import DIMENSIONS, FIRST, MOST_PARTS, Column, part_of, place
from squelch.cluster.runs.series import described

MOST_POINTS = 60
"""Points of a cell's line; a longer run shows means of neighbouring values."""
WIDTH, HEIGHT = 120.0, 24.0
"""Size of a cell's line in its drawing's units."""


@dataclass(frozen=True)
class Cell:
    """The values of one part and column. `line`: points of an SVG polyline in `WIDTH` x `HEIGHT`; `best`: the largest
    value, and `best_step` its step."""

    newest: float
    newest_step: int
    best: float
    best_step: int
    line: str


@dataclass(frozen=True)
class Row:
    """One part with its cells by column; None where it was not measured."""

    name: str
    cells: tuple[Cell | None, ...]


class Parts:
    """The values by part, fed with the lines of a run in order."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, dict[int, tuple[array[float], array[float]]]]] = {}
        self._columns = [
            (dimension, number, column)
            for dimension, columns in DIMENSIONS.items()
            for number, column in enumerate(columns)
        ]

    def take(self, line: Mapping[str, Any]) -> None:
        """Adds the values of a step."""
        for key, value in line.items():
            if value is not None and key.startswith(FIRST):
                for dimension, number, column in self._columns:
                    if name := part_of(column, key):
                        self._add(dimension, name, number, float(described(line, key)), float(value))

    def _add(self, dimension: str, name: str, number: int, step: float, value: float) -> None:
        parts = self._values.setdefault(dimension, {})
        if not np.isfinite(value) or (name not in parts and len(parts) >= MOST_PARTS):
            return
        steps, values = parts.setdefault(name, {}).setdefault(number, (array("d"), array("d")))
        steps.append(step)
        values.append(value)

    def rows(self, dimension: str) -> list[Row]:
        """The parts of a dimension in their order; empty if none was measured."""
        parts, columns = self._values.get(dimension, {}), DIMENSIONS[dimension]
        axes = [_axis(one, [part[i][1] for part in parts.values() if i in part]) for i, one in enumerate(columns)]
        return [
            Row(name, tuple(_cell(*part[i], axis) if i in part else None for i, axis in enumerate(axes)))
            for name, part in sorted(parts.items(), key=lambda one: place(one[0]))
        ]


def _axis(column: Column, values: Sequence[array[float]]) -> tuple[float, float]:
    """The ends of a column's axis, which its parts share."""
    if column.share or not values:
        return 0.0, 1.0
    low, high = min(0.0, *map(min, values)), max(map(max, values))
    return low, high if high > low else low + 1.0


def _cell(steps: array[float], values: array[float], axis: tuple[float, float]) -> Cell:
    at, height = np.array(steps), np.array(values)
    best = int(height.argmax())
    if len(at) > MOST_POINTS:
        at, height = (np.array([part.mean() for part in np.array_split(one, MOST_POINTS)]) for one in (at, height))
    x = WIDTH * (at - at[0]) / max(at[-1] - at[0], 1.0)
    y = HEIGHT * (1 - (height - axis[0]) / (axis[1] - axis[0]))
    line = " ".join(f"{one:.1f},{other:.1f}" for one, other in zip(x, y, strict=True))
    line = f"{line} {line}" if len(at) == 1 else line  # a line of one point is not drawn
    return Cell(values[-1], int(steps[-1]), values[best], int(steps[best]), line)
