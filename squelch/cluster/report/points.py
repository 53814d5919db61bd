"""Figures of arms as points with intervals. Pure.

Intervals are 95% t-intervals over seeds (`cluster.sweep.table`): one value a seed. An arm of a single run has no such
interval. Where the run itself states one (over prompts, or over validation tasks), it is shown instead; `interval` says
which of the two it is.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from squelch.cluster.plots.draw import Line
from squelch.cluster.report.runs import Arm, Run
from squelch.cluster.runs import series
from squelch.cluster.sweep.table import t_interval

Row = dict[str, Any]
MAX_POINTS = 60
"""Points of a line. Longer series are averaged over as few neighbouring steps as give no more."""
OVER_SEEDS, OVER_PROMPTS = "seeds", "prompts"


def grouped(rows: Sequence[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    """The rows by their values of these keys, in the order in which they first appear."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), []).append(row)
    return found


def over_steps(arm: Arm, key: str) -> list[Row]:
    """A figure over training: rows of `step`, `mean`, `low`, `high`, `runs`, `interval`.

    A point averages the steps of one bin. It exists where every run that records the figure has a value, so that a mean
    never changes because a run is missing.
    """
    known = [series for run in arm.runs if (series := run.series(key))]
    width = bin_width(known)
    binned = [_binned(series, width) for series in known]
    shared = sorted(set.intersection(*(set(bins) for bins in binned))) if binned else []
    bounds = _own_interval(arm.runs, key, width) if len(known) == 1 else {}
    return [_point([bins[at] for bins in binned], bounds.get(at)) for at in shared]


def _point(values: Sequence[tuple[float, float]], bounds: tuple[float, float] | None) -> Row:
    found = t_interval([value for _, value in values])
    low, high, kind = found["low"], found["high"], OVER_SEEDS if found["low"] is not None else ""
    if low is None and bounds is not None:
        (low, high), kind = bounds, OVER_PROMPTS
    step = statistics.fmean(step for step, _ in values)
    return {"step": step, "mean": found["mean"], "low": low, "high": high, "runs": len(values), "interval": kind}


def bin_width(series: Sequence[Mapping[int, float]]) -> int:
    """Steps that one point stands for: at least the median distance of the sparsest series' values."""
    if not series:
        return 1
    last = max(max(values) for values in series)
    gaps = [statistics.median(b - a for a, b in zip([*s][:-1], [*s][1:], strict=True)) for s in series if len(s) > 1]
    return max(1, math.ceil((last + 1) / MAX_POINTS), math.ceil(max(gaps, default=1)) if len(series) > 1 else 1)


def _binned(series: Mapping[int, float], width: int) -> dict[int, tuple[float, float]]:
    """(mean step, mean value) of each bin that holds a value."""
    bins: dict[int, list[tuple[int, float]]] = {}
    for step, value in series.items():
        bins.setdefault(step // width, []).append((step, value))
    return {at: (statistics.fmean(s for s, _ in own), statistics.fmean(v for _, v in own)) for at, own in bins.items()}


def _own_interval(runs: Sequence[Run], key: str, width: int) -> dict[int, tuple[float, float]]:
    """The interval that the run itself states for a figure, by bin; the mean of its ends where a bin holds several."""
    for run in runs:
        low, high = _binned(run.series(f"{key}_low"), width), _binned(run.series(f"{key}_high"), width)
        if low and high:
            return {at: (low[at][1], high[at][1]) for at in low.keys() & high.keys()}
    return {}


def last_value(run: Run, key: str, until: int | None = None) -> float | None:
    """A figure's last value, at the last step up to `until`; None if it has none."""
    return series.last_value(run.series(key), until)


def mean_between(run: Run, key: str, first: float, last: float) -> float | None:
    """A figure's mean over the steps in [first, last]; None if it has none."""
    known = [value for step, value in run.series(key).items() if first <= step <= last]
    return statistics.fmean(known) if known else None


def line_of(points: Sequence[Mapping[str, Any]], label: str, colour: str, across: str = "step") -> Line:
    """The points as a line over their values of `across`; it has an interval if every point has one."""
    banded = bool(points) and all(point["low"] is not None for point in points)
    low, high = ([point[end] for point in points] if banded else () for end in ("low", "high"))
    return Line(label, [point[across] for point in points], [point["mean"] for point in points], colour, low, high)


def with_interval(values: Sequence[float | None]) -> Row:
    """Mean and interval over seeds of one value a seed, and the values."""
    known = [value for value in values if value is not None]
    found = t_interval(known)
    return {"mean": found["mean"], "low": found["low"], "high": found["high"], "values": known}
