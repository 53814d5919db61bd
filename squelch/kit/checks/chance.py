"""How often chance may make a check wrong about a healthy run. Pure.

A check that decides by chance bounds its own rate, whatever the policy and the number of rows; `catalogue.yaml` states
it, and all rates together are at most 1%.
"""

from __future__ import annotations

import math

BY_CHANCE = 1e-3
"""The rate of a check that has no other."""


def log_tail(count: int, of: int, chance: float) -> float:
    """Log of the probability, at most, of `count` or more `of` independent events of this `chance`: Chernoff's
    bound."""
    share = count / of
    if share <= chance:
        return 0.0
    if not chance:
        return -math.inf
    others = (1 - share) * math.log((1 - share) / (1 - chance)) if share < 1 else 0.0
    return -of * (share * math.log(share / chance) + others)
