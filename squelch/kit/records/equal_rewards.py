"""Whether the rewards of a group differ at all: one test for the filter's zero and for the learner's advantages, so
that no group is kept whose advantages are all 0. Pure numpy."""

import numpy as np

RELATIVE_ZERO = 1e-10
"""A difference of at most this share of the largest absolute value (or of 1, if larger) counts as rounding error."""


def are_equal(rewards: np.ndarray) -> np.ndarray:
    """Whether the rewards of each group are equal but for rounding, (...,) bool; `rewards`: (..., num_survivors)
    float64. A single survivor's are; those with a value that is not finite are not."""
    if rewards.shape[-1] < 2:
        return np.ones(rewards.shape[:-1], dtype=bool)
    largest, smallest = rewards.max(axis=-1), rewards.min(axis=-1)
    with np.errstate(over="ignore", invalid="ignore"):
        bound = RELATIVE_ZERO * np.maximum(1.0, np.maximum(np.abs(largest), np.abs(smallest)))
        return largest - smallest <= np.where(np.isfinite(bound), bound, -1.0)
