"""The statistics by which a group can be scored: one table entry each (docs/guide/filter.md).

To add a statistic, add an entry to `STATISTICS`: settings, `squelch filter` and docs/guide/filter.md take its name from
this table. This module does not import numpy, because settings check names of statistics against the table and the
command line must start fast; reductions use methods of the given arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np

ZERO = 1e-10
"""A score of at most this absolute value is zero (the same bound as in the authors' code)."""

ROUNDING = 1e-12
"""Scores that differ by at most this share tie, and a sum or score that misses its threshold by no more reaches it."""

Compat = Literal["paper", "ragen"]
Column = Literal["returns", "lengths", "surprisals"]
"""A statistic's input, one value per trajectory: episode return, number of sampled tokens, mean surprisal of the
tokens."""
Reduction = Callable[["np.ndarray"], "np.ndarray"]
"""(num_groups, num_survivors) -> (num_groups,), float64."""


@dataclass(frozen=True)
class Statistic:
    """A statistic by which groups are scored."""

    name: str
    of: Column
    reduce: Reduction
    unit: str
    help: str
    """Description of the statistic; a noun phrase."""
    needs: int = 1
    """Survivors that the statistic needs; a rule refuses groups with fewer."""
    zero: str = ""
    """The reason why a group has score 0; by default that the statistic is zero."""
    may_be_negative: bool = False
    reduce_ragen: Reduction | None = None
    """The computation under this name in the authors' code, if it differs from the paper."""

    def reduction(self, compat: Compat) -> Reduction:
        """The function that computes the statistic under `compat`."""
        return self.reduce_ragen if compat == "ragen" and self.reduce_ragen else self.reduce


def total(values: np.ndarray) -> np.ndarray:
    """(n, g) -> (n,), the sum."""
    return values.sum(axis=1)


def mean(values: np.ndarray) -> np.ndarray:
    """(n, g) -> (n,), the mean."""
    return values.sum(axis=1) / values.shape[1]


def sample_variance(values: np.ndarray) -> np.ndarray:
    """(n, g) -> (n,), the sample variance (ddof = 1); 0 if g is 1. Uses two passes, without the overhead of np.var."""
    deviations = values - mean(values)[:, None]
    return (deviations * deviations).sum(axis=1) / max(1, values.shape[1] - 1)


def sample_std(values: np.ndarray) -> np.ndarray:
    """(n, g) -> (n,), the square root of the sample variance."""
    return sample_variance(values) ** 0.5


STATISTICS: Mapping[str, Statistic] = {
    entry.name: entry
    for entry in (
        Statistic(
            "reward_variance",
            "returns",
            sample_variance,
            "reward²",
            "sample variance of the returns (section 3.3; ddof = 1)",
            needs=2,
            reduce_ragen=sample_std,
        ),
        Statistic("reward_std", "returns", sample_std, "reward", "sample standard deviation of the returns", needs=2),
        Statistic("reward_sum", "returns", total, "reward", "sum of the returns", may_be_negative=True),
        Statistic("reward_mean", "returns", mean, "reward", "mean of the returns", may_be_negative=True),
        Statistic(
            "entropy",
            "surprisals",
            mean,
            "nats",
            "mean over trajectories of the mean surprisal of their sampled tokens",
        ),
        Statistic(
            "entropy_variance",
            "surprisals",
            sample_variance,
            "nats²",
            "sample variance over trajectories of that mean surprisal",
            needs=2,
        ),
        Statistic("length", "lengths", mean, "tokens", "mean number of sampled tokens per trajectory"),
    )
}
