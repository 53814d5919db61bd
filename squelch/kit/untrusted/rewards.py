"""Rewards of environments that others wrote."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

from squelch.kit.untrusted.files import brief


def finite_reward(reward: Any, method: str = "step") -> float:
    """The reward that a method of the environment gave. Raises ValueError if it is no finite number."""
    if not isinstance(reward, Real) or not math.isfinite(reward):
        raise ValueError(f"the environment's {method}() returned the reward {brief(reward)}; a finite number is needed")
    return float(reward)
