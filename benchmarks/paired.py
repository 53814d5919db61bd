"""Ratios of paired measurements of two checkouts."""

from __future__ import annotations

import math

import numpy as np

from squelch.actors.diagnosis.uncertainty import t_quantile


def ratio(pairs: list[tuple[float, float]]) -> dict[str, float]:
    """Geometric mean of the ratios of pairs (after, before), its 95% t-interval, the medians `before` and `after`."""
    after, before = np.array(pairs).T
    logs = np.log(after / before)
    half = t_quantile(0.975, len(logs) - 1) * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    mean = float(logs.mean())
    return {
        "before": float(np.median(before)),
        "after": float(np.median(after)),
        "ratio": math.exp(mean),
        "low": math.exp(mean - half),
        "high": math.exp(mean + half),
        "pairs": len(logs),
    }
