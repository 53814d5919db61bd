"""Generalised advantage estimation over sampled tokens (Schulman et al. 2016, Eq. 16). Pure numpy, float64.

Flat form: every argument has one entry per sampled token, row after row; `lengths` holds the number of tokens per row.

Invariants:

- The successor of a turn's last sampled token is the next turn's first sampled token: fed tokens between them
  (observations, templates) count neither as time steps nor as states with a value.
- `ends` holds the value of the state after each row: 0 after a terminal state and at the turn limit, the critic's value
  where the episode was ended from outside.
- Rows are independent of each other, except for whitening, whose moments are taken over all rows.
"""

from dataclasses import dataclass

import numpy as np

from squelch.kit.records.equal_rewards import RELATIVE_ZERO


def gae(
    rewards: np.ndarray, values: np.ndarray, lengths: np.ndarray, ends: np.ndarray, gamma: float, lam: float
) -> tuple[np.ndarray, np.ndarray]:
    """(advantages, returns), each (num_sampled,) float64; `ends`: (num_rows,) value of the state after each row.

    delta_t = r_t + gamma V_{t+1} - V_t;  A_t = delta_t + gamma lambda A_{t+1};  the return is A_t + V_t.
    """
    rewards, values = np.asarray(rewards, np.float64), np.asarray(values, np.float64)
    advantages = np.zeros_like(rewards)
    stops = np.cumsum(lengths, dtype=np.int64)
    following, carried = np.asarray(ends, np.float64).copy(), np.zeros(len(lengths))
    for back in range(1, int(np.max(lengths, initial=0)) + 1):
        rows = np.flatnonzero(lengths >= back)
        here = stops[rows] - back
        delta = rewards[here] + gamma * following[rows] - values[here]
        carried[rows] = delta + gamma * lam * carried[rows]
        advantages[here], following[rows] = carried[rows], values[here]
    return advantages, advantages + values


@dataclass(frozen=True)
class Moments:
    """Mean and population std of advantages over all ranks, and their largest absolute value."""

    mean: float
    std: float
    largest: float


def whiten(advantages: np.ndarray, moments: Moments) -> np.ndarray:
    """(A - mean) / std; all 0 when the advantages do not differ."""
    if moments.std <= RELATIVE_ZERO * max(1.0, moments.largest):
        return np.zeros_like(advantages)
    return (advantages - moments.mean) / moments.std


def explained_variance(returns: tuple[float, float, float], residuals: tuple[float, float, float]) -> float:
    """1 - Var(return - value) / Var(return) from (count, sum, sum of squares) of each; NaN if returns do not differ."""
    total, left = _variance(*returns), _variance(*residuals)
    return 1.0 - left / total if total > 0 else float("nan")


def _variance(count: float, total: float, squares: float) -> float:
    """Population variance; rounding below a relative 1e-12 of the mean square is 0."""
    if count < 1:
        return 0.0
    mean_square, mean = squares / count, total / count
    variance = mean_square - mean**2
    return variance if variance > 1e-12 * mean_square else 0.0
