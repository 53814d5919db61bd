"""q of a kept share: how well a step on the groups that a rho keeps agrees with that of all groups. Pure numpy.

For a set S of groups, chosen by the filter's own rule from the rewards of half a of each group:

    q(S) = <A_S + reg_S, B> / |A_S + reg_S|

A_S is the mean over S of half a's task gradients with the advantages that are trained on, reg_S the mean of the
regularisers' gradients of the same trajectories, and B the mean over ALL groups of half b's unbiased task gradient. So
q estimates how well the step that S makes agrees with the step that all groups call for, averaged with the halves
swapped. It is 0 for a set that makes no step.

Both are measured in the objective's own aggregation over tokens. Where that sums log-probabilities over a trajectory
(`constant`), B is up to that constant the gradient of the mean return, and q its first-order rise for a step of unit
length, without bias.
`sequence_mean` and `token_mean` divide by numbers of tokens, and so do B and q: then only the rhos of one measurement
can be compared, which is all that the controller does.

What it is not: S is chosen from half of the trajectories that the filter has, so it is a noisier choice than the run's
own, at every rho alike. Each group is normalised over itself; an objective whose mean runs over all tokens of a step
(`token_mean`) weights long groups more. Adam's step is not along the gradient.

Invariants: choice and direction come from one half and B from the other, so that noise of one group never praises its
own choice. Every q is a function of the inner products of the half gradients alone (`HalfGram`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class HalfGram:
    """Inner products of the half gradients of `group_ids`, P groups that could be split.

    `gram`: (4 P, 4 P) float64; rows are the unbiased task gradients of halves a, of halves b, then the regularisers'
    gradients of halves a, of halves b, as gradients of the loss. `scales`: (2, P), for each half the factor from the
    unbiased task gradient to the one that is trained on.
    """

    group_ids: tuple[str, ...]
    scales: np.ndarray
    gram: np.ndarray

    @property
    def num_groups(self) -> int:
        """P."""
        return len(self.group_ids)

    def q(self, kept: np.ndarray, half: int) -> float:
        """q of a set that was chosen from half 0 or 1. `kept`: (P,) bool. 0 if the set makes no step, NaN if a gradient
        of the measurement is not finite."""
        count, chosen = self.num_groups, kept.astype(np.float64)
        if not np.isfinite(self.gram).all():
            return math.nan
        if not chosen.any():
            return 0.0
        step, gain = np.zeros((2, 2, count)), np.zeros((2, 2, count))
        step[0, half] = chosen * self.scales[half] / chosen.sum()
        step[1, half] = chosen / chosen.sum()
        gain[0, 1 - half] = 1 / count
        direction = step.ravel()
        square = float(direction @ self.gram @ direction)
        return float(direction @ self.gram @ gain.ravel()) / math.sqrt(square) if square > 0 else 0.0
