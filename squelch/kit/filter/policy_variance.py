"""Policy variance: the reward variance of a group without the part that environment noise adds (docs/guide/filter.md).

Each of the G trajectories of a group is replayed R times under fresh noise (`actors.play.replaying`), with returns
Y_gr, means m_g over r and sample variances s_g^2 over r. The estimate is that of a one-way analysis of variance with
random effects,

    V = 1/(G-1) sum_g (m_g - m)^2 - 1/(G R) sum_g s_g^2,

and its standard error is the jackknife's, with one trajectory left out at a time.

Invariants:

- V is unbiased for the variance of m_g's expectation over plans, if the plans were fixed before any noise was seen and
  no two replays share noise. It may be negative. For plans that react to what happened it is biased in either direction
  (docs/research/policy-variance.md measures both).
- V does not change if the same constant is added to all returns, or if the trajectories are reordered.
- Without noise V is the reward variance.

Arrays are (n, G, R) float64, n groups of the same shape, G >= 3 and R >= 2. Like `kit.filter.statistics`, this module
does not import numpy, because settings must be read fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

FEWEST = 3
"""Replayed trajectories that a group needs for a policy variance with a standard error."""
STANDARD_ERRORS = 2.0
"""A policy variance is significant if it exceeds this number of its standard errors."""


def are_replayed(returns: np.ndarray) -> np.ndarray:
    """Mask (G,) of the trajectories whose replays did not fail; `returns`: (G, R), a row with NaN where they did."""
    return (returns == returns).all(axis=1)  # NaN differs from itself


def policy_variance(returns: np.ndarray) -> np.ndarray:
    """V of each group, (n,), in reward squared."""
    between, within = _parts(returns)
    return between.sum(axis=1) / (returns.shape[1] - 1) - within.sum(axis=1) / returns.shape[1]


def standard_error(returns: np.ndarray) -> np.ndarray:
    """Jackknife standard error of V over the trajectories, (n,), in reward squared."""
    between, within = _parts(returns)
    size = returns.shape[1]
    left_between = (between.sum(axis=1)[:, None] - size / (size - 1) * between) / (size - 2)
    left_within = (within.sum(axis=1)[:, None] - within) / (size - 1)
    left_out = left_between - left_within
    deviations = left_out - left_out.mean(axis=1)[:, None]
    return ((size - 1) / size * (deviations * deviations).sum(axis=1)) ** 0.5


def significant_policy_variance(returns: np.ndarray) -> np.ndarray:
    """The score of each group, (n,): V if it is significant, else 0."""
    found = policy_variance(returns)
    return found * (found > STANDARD_ERRORS * standard_error(returns))


def _parts(returns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(n, G) each: the squared deviation of a trajectory's mean from its group's, and the variance of that mean over
    noise."""
    means = returns.mean(axis=2)
    deviations = means - means.mean(axis=1)[:, None]
    noise = returns - means[:, :, None]
    count = returns.shape[2]
    return deviations * deviations, (noise * noise).sum(axis=2) / (count * (count - 1))
