"""The metrics of a run by the step that they describe, which may be an earlier one than their line's. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

DESCRIBED = {
    "scorer/step": ("first_turn/", "trajectory/", "judge/", "turn/", "kind/"),
    "validation/step": ("validation/",),
    "probe/step": ("probe/",),
}
"""Keys of the step that metrics describe where it is not the line's own, with the beginnings of those metrics."""


def series(lines: Sequence[Mapping[str, Any]], key: str) -> dict[int, float]:
    """A metric by the step that it describes: that of `DESCRIBED`, or the line's own."""
    found = {described(line, key): float(line[key]) for line in lines if line.get(key) is not None}
    return dict(sorted(found.items()))


def last_value(values: Mapping[int, float], until: int | None = None) -> float | None:
    """The last value, at the last step up to `until`; None if there is none."""
    known = [value for step, value in values.items() if until is None or step <= until]
    return known[-1] if known else None


@cache
def step_key(metric: str) -> str:
    """The key of the step that a metric describes."""
    return next((own for own, first in DESCRIBED.items() if metric.startswith(first)), "step")


def described(line: Mapping[str, Any], metric: str) -> int:
    """The step that a metric of this line describes."""
    own = line.get(step_key(metric))
    return int(line["step"] if own is None else own)
