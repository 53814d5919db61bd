"""The filter's metrics, and the values of a step that feed them. The run, its checkpoint and `squelch filter` all
compute values over groups with the functions of this module. Pure.

A refused group counts in the number of groups, but in no mean, sum or count of zeros. Sums are exact (`math.fsum`), so
no value depends on the order of arrival.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Protocol

from squelch.kit.filter.statistics import ZERO
from squelch.kit.metrics.declared import declared

DECISIONS = ("kept", "dropped", "refused")
VARIANCE_BANDS = ("0", "0.001", "0.003", "0.01", "0.03", "0.1", "0.3", "1", "3", "10", "+Inf")
"""Upper ends of the bands of reward variance in which groups are counted."""
METRICS = declared(__file__, VARIANCE_BANDS=VARIANCE_BANDS)
_SMALLER = 2.0**-64
"""Scales values whose sum no float holds; their shares stay."""


class Group(Protocol):
    """One decided group. `score`, `variance` (of the returns) and `mean` (return) are NaN if it was refused."""

    @property
    def verdict(self) -> str | None: ...

    @property
    def score(self) -> float: ...

    @property
    def variance(self) -> float: ...

    @property
    def mean(self) -> float: ...


def step_metrics(groups: Sequence[Group], refill_rounds: int, no_signal_streak: int) -> dict[str, float]:
    """The metrics of one step's groups by flat key; a mean of no groups, or a share of 0, is NaN."""
    valid = [group for group in groups if group.verdict != "refused"]
    kept = [group.verdict == "kept" for group in groups]
    mass = kept_mass([group.variance for group in groups], kept)
    return {
        "num_groups": float(len(groups)),
        **{f"{name}_groups": float(sum(group.verdict == name for group in groups)) for name in DECISIONS},
        "zero_variance_groups": float(count_zero(group.variance for group in valid)),
        "dropped_with_variance": mean(float(group.variance > ZERO) for group in valid if group.verdict == "dropped"),
        "reward_variance_mean": mean(group.variance for group in valid),
        **_by_variance([group.variance for group in valid]),
        "reward_mean": mean(group.mean for group in valid),
        "reward_mean_kept": mean(group.mean for group in valid if group.verdict == "kept"),
        "reward_mean_dropped": mean(group.mean for group in valid if group.verdict == "dropped"),
        "kept_mass": math.nan if mass is None else mass,
        "kept_fraction": kept_fraction(kept),
        "refill_rounds": float(refill_rounds),
        "no_signal_streak": float(no_signal_streak),
    }


class LabelledGroup(Group, Protocol):
    """A decided group with its environment's label."""

    @property
    def label(self) -> str: ...


def environment_metrics(groups: Sequence[LabelledGroup]) -> dict[str, float]:
    """The metrics of each environment's groups by flat key; none of groups without a label. NaN as `step_metrics`."""
    found: dict[str, float] = {}
    for label in sorted({group.label for group in groups if group.label}):
        own = [group for group in groups if group.label == label]
        valid = [group for group in own if group.verdict != "refused"]
        found |= {
            f"environment/groups/{label}": float(len(own)),
            f"environment/kept/{label}": kept_fraction([group.verdict == "kept" for group in own]),
            f"environment/reward/{label}": mean(group.mean for group in valid),
            f"environment/variance/{label}": mean(group.variance for group in valid),
        }
    return found


def _by_variance(variances: Sequence[float]) -> dict[str, float]:
    """The number of variances up to each band's upper end; one that counts as zero is in the band of 0."""
    return {
        f"reward_variance_up_to/{end}": float(sum(variance <= float(end) + ZERO for variance in variances))
        for end in VARIANCE_BANDS
    }


def kept_mass(variances: Sequence[float], kept: Sequence[bool]) -> float | None:
    """Share of the summed reward variance that the kept groups hold, in [0, 1]; None if the sum is 0.

    `variances`: one per group, NaN for a refused group.
    """
    try:
        total = math.fsum(variance for variance in variances if not math.isnan(variance))
    except OverflowError:
        return kept_mass([variance * _SMALLER for variance in variances], kept)
    if total <= 0:
        return None
    held = (variance for variance, is_kept in zip(variances, kept, strict=True) if is_kept and not math.isnan(variance))
    return min(1.0, math.fsum(held) / total)


def kept_fraction(kept: Sequence[bool]) -> float:
    """Kept groups divided by all groups, including refused ones; 0 without groups."""
    return sum(kept) / len(kept) if kept else 0.0


def count_zero(values: Iterable[float]) -> int:
    """Number of values that are zero, |value| <= 1e-10; NaN does not count."""
    return sum(abs(value) <= ZERO for value in values)


def mean(values: Iterable[float]) -> float:
    """Mean from an exact sum; NaN without values."""
    given = list(values)
    try:
        return math.fsum(given) / len(given) if given else math.nan
    except OverflowError:
        return math.fsum(value / len(given) for value in given)
