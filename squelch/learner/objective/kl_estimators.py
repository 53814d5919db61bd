"""Estimators of KL(policy || reference) at tokens that the policy sampled (Schulman, "Approximating KL divergence").

Each maps d = log reference - log policy, nats, of any shape, to nats of that shape; `losses.kl_estimate` clamps d
to 20 nats either way before. Which one a run uses:
`learner.objective.kl.estimator`, k3 by default. k1's mean over samples is unbiased, but its gradient on policy is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def k1(d: Tensor) -> Tensor:
    """-d: unbiased, and negative at some tokens."""
    return -d


def k2(d: Tensor) -> Tensor:
    """d^2 / 2: biased, never negative."""
    return d.square() / 2


def k3(d: Tensor) -> Tensor:
    """exp(d) - 1 - d: unbiased and never negative."""
    return d.exp() - 1 - d


KL_ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}
"""Each estimator maps d = log reference - log policy to nats (Schulman, "Approximating KL divergence")."""
