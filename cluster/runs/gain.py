"""The gain in success between two validations, with its interval. Pure."""

from __future__ import annotations

import math

import numpy as np

from actors.diagnosis.uncertainty import Z95


def gain_interval(before: np.ndarray, after: np.ndarray) -> tuple[float, float, float]:
    """(mean, low, high): the paired gain in success on the same tasks, with its 95% normal interval.

    Args:
        before, after: (num_tasks,) bool, success of the same tasks in the same order.
    """
    gain = after.astype(np.float64) - before.astype(np.float64)
    half = Z95 * float(gain.std(ddof=1)) / math.sqrt(len(gain)) if len(gain) > 1 else math.inf
    return float(gain.mean()), float(gain.mean() - half), float(gain.mean() + half)
