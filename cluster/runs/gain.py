"""The gain in success between two validations, with its interval. Pure."""

from __future__ import annotations

import math

import numpy as np

from squelch.actors.diagnosis.uncertainty import Z95, wilson_interval


def gain_interval(before: np.ndarray, after: np.ndarray) -> tuple[float, float, float]:
    """(mean, low, high): the paired gain in success on the same tasks, with its 95% normal interval. Where all tasks
    have the same gain, as where none was solved before or after, their spread carries no information: Wilson's bound of
    the share of other tasks is the half width then.

    Args:
        before, after: (num_tasks,) bool, success of the same tasks in the same order.
    """
    gain = after.astype(np.float64) - before.astype(np.float64)
    mean, half = float(gain.mean()), Z95 * float(gain.std(ddof=1)) / math.sqrt(len(gain)) if len(gain) > 1 else math.inf
    if half == 0:
        _, half = wilson_interval(0, len(gain))
        return mean, max(-1.0, mean - half), min(1.0, mean + half)
    return mean, mean - half, mean + half
