"""Advantages: how good each trajectory was next to its group. Pure numpy, float64.

Invariant: a group whose returns do not differ has advantage 0 everywhere, whatever the estimator; nothing here ever
divides by a number that stands for rounding.
"""

import numpy as np

RELATIVE_ZERO = 1e-10
"""A std below this share of the largest absolute return (or of 1) is rounding, not signal."""


def shaped_returns(returns: np.ndarray, format_penalties: np.ndarray, include_penalty: bool) -> np.ndarray:
    """What the advantage ranks, (num_survivors,) float64: the episode return, with the format penalty if asked."""
    base = np.asarray(returns, dtype=np.float64)
    return base + np.asarray(format_penalties, dtype=np.float64) if include_penalty else base


def group_advantages(returns: np.ndarray, estimator: str) -> np.ndarray:
    """Advantages of one group's surviving trajectories, (num_survivors,) float64.

    `grpo`: (R - mean) / std with the sample std (ddof = 1), the one GRPO implementations use (Shao et al. 2024,
    section 4.1.2, leaves ddof open). `grpo_no_std`: R - mean (Definition E.2). A single survivor has advantage 0.
    """
    values = np.asarray(returns, dtype=np.float64)
    if len(values) < 2:
        return np.zeros_like(values)
    centred = values - values.mean()
    std = values.std(ddof=1)
    if std <= RELATIVE_ZERO * max(1.0, float(np.abs(values).max())):
        return np.zeros_like(values)
    return centred if estimator == "grpo_no_std" else centred / std
