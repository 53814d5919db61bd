"""How values look on the page: numbers, returns, boards' colours, and the strip of a run's steps. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from squelch.kit.process.terminal import UNKNOWN

FILTERS = {"environment": "environment", "kind": "task_kind"}
"""Column by the name of a filter whose choices are the run's own values."""
MOST_BARS = 160
MINUS = "\u2212"


@dataclass(frozen=True)
class Bar:
    """Some neighbouring steps: shares of their groups, in [0, 1], from the bottom of the bar to its top."""

    first: int
    last: int
    num_groups: int
    kept: float
    dropped: float
    zero: float
    """Groups without reward variance; the rest of those dropped or refused is in `dropped`."""
    selected: float
    """Share of the groups that the list's filters leave."""


def strip_of(table: pa.Table, selected: np.ndarray) -> list[Bar]:
    """The run's steps as at most `MOST_BARS` bars. `selected`: row numbers of the listed groups."""
    if not len(table):
        return []
    steps = table["step"].to_numpy()
    size = max(1, -(-(int(steps[-1]) - int(steps[0]) + 1) // MOST_BARS))
    bins = (steps - steps[0]) // size
    kept = pc.fill_null(pc.equal(table["decision"], "kept"), False).to_numpy()
    zero = (table["reward_variance"].to_numpy() <= 1e-10) & ~kept
    count = np.bincount(bins)
    shares = [np.bincount(bins, flags) / np.maximum(count, 1) for flags in (kept, zero)]
    listed = np.bincount(bins[selected], minlength=len(count)) / np.maximum(count, 1)
    return [
        Bar(
            int(steps[0]) + number * size,
            int(steps[0]) + number * size + size - 1,
            int(count[number]),
            float(shares[0][number]),
            float(1 - shares[0][number] - shares[1][number]),
            float(shares[1][number]),
            float(listed[number]),
        )
        for number in np.flatnonzero(count)
    ]


def number(value: float | None, digits: int = 2) -> str:
    """A number with a true minus, or `n/a` for none."""
    if value is None or value != value:
        return UNKNOWN
    text = f"{value:.{digits}f}"
    return f"{MINUS}{text[1:]}" if text.startswith("-") else text


def compact(value: float | None) -> str:
    """A number in few characters, e.g. `0.25`, `3`, `1.5`."""
    return UNKNOWN if value is None or value != value else f"{value:.3g}".replace("-", MINUS)


def whole(value: float | None) -> str:
    """A count with thin spaces between thousands."""
    return UNKNOWN if value is None or value != value else f"{value:,.0f}".replace(",", "\u2009")


def percent(value: float | None) -> str:
    """A share as a percentage."""
    return UNKNOWN if value is None or value != value else f"{value:.0%}"


def versions(first: int | None, last: int | None) -> str:
    """A range of policy versions."""
    if first is None or last is None:
        return UNKNOWN
    return str(first) if first == last else f"{first}\u2013{last}"


def levels(values: Sequence[float | None]) -> list[float | None]:
    """Heights in [0, 1] of returns on an axis that includes 0; None for a failed trajectory."""
    known = [value for value in values if value is not None]
    low, high = min([0.0, *known]), max([0.0, *known])
    span = high - low if high - low > 1e-9 else 1.0
    return [None if value is None else (value - low) / span for value in values]


def spread(variance: float | None) -> float:
    """Length in [0, 1] of a reward variance's bar, by its square root: 1 for a variance of 0.25 and more, the largest
    of returns in [0, 1]."""
    return 0.0 if variance is None or variance != variance else min(1.0, max(0.0, variance) ** 0.5 / 0.5)
