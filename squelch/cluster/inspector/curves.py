"""The curves of the page of metrics: smoothed, and those of two runs over one axis of steps. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

MOST_POINTS = 2_000
"""Points of a curve; a longer run shows the mean of neighbouring steps."""
WINDOWS = (1, 5, 20, 100)
"""Numbers of values that a reader may have the mean of; 1 shows the values themselves."""

Columns = dict[str, list[float | None]]


def over_steps(
    runs: Mapping[str, np.ndarray], keys: Sequence[str], smooth: Sequence[str] = (), window: int = 1
) -> dict[str, Any]:
    """The curves of runs over the steps that any of them has, as the page's script takes them.

    Args:
        runs: by name, (num_steps, 1 + num_keys): the step and its values; NaN where a step has none.
        keys: the columns after the first.
        smooth: the keys of which each value is the mean of the newest `window` values.
    Returns:
        `step`, and for each run its `name`, its `values` and, of smoothed keys, its `raw` values by key.
    """
    steps = np.unique(np.concatenate([table[:, 0] for table in runs.values()]))
    parts: list[tuple[str, str, str, np.ndarray]] = []
    for name, table in runs.items():
        at = np.searchsorted(steps, table[:, 0])
        for key, column in zip(keys, np.where(np.isfinite(table), table, np.nan)[:, 1:].T, strict=True):
            if window > 1 and key in smooth:
                parts.append((name, "raw", key, spread(column, at, len(steps))))
                column = smoothed(column, window)
            parts.append((name, "values", key, spread(column, at, len(steps))))
    step, *columns = _thinned(np.stack([steps, *(part[3] for part in parts)], axis=1)).T
    found: dict[str, dict[str, Columns]] = {name: {"values": {}, "raw": {}} for name in runs}
    for (name, kind, key, _), column in zip(parts, columns, strict=True):
        found[name][kind][key] = _written(column)
    return {"step": _written(step), "runs": [{"name": name, **curves} for name, curves in found.items()]}


def spread(column: np.ndarray, at: np.ndarray, length: int) -> np.ndarray:
    """(length,) the values at their places, NaN elsewhere."""
    found = np.full(length, np.nan)
    found[at] = column
    return found


def smoothed(column: np.ndarray, window: int) -> np.ndarray:
    """(num_steps,) at each step that has a value the mean of the newest `window` values, itself included. Later values
    are in no mean, so that a point of a live run does not move."""
    known = ~np.isnan(column)
    sums = np.concatenate([[0.0], np.cumsum(column[known])])
    ends = np.arange(1, len(sums))
    starts = np.maximum(ends - window, 0)
    found = column.copy()
    found[known] = (sums[ends] - sums[starts]) / (ends - starts)
    return found


def _thinned(table: np.ndarray) -> np.ndarray:
    """(num_steps, num_columns) with at most `MOST_POINTS` rows: means of neighbouring rows without their NaN."""
    if len(table) <= MOST_POINTS:
        return table
    parts = np.array_split(table, MOST_POINTS)
    counts = [np.maximum((~np.isnan(part)).sum(axis=0), 1) for part in parts]
    known = [(~np.isnan(part)).any(axis=0) for part in parts]
    means = [np.nansum(part, axis=0) / count for part, count in zip(parts, counts, strict=True)]
    return np.array([np.where(has, mean, np.nan) for has, mean in zip(known, means, strict=True)])


def _written(column: np.ndarray) -> list[float | None]:
    return [None if np.isnan(value) else float(f"{value:.6g}") for value in column]
