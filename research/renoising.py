"""A series with its noise resampled around its own trend: the judges of the alarms and of warnings watch such series.

The trend is the running mean over the value, BLOCK values before it and BLOCK after it, fewer at the ends. The noise is
drawn in blocks of BLOCK neighbours, which start anywhere in the series: correlations of the noise over more values are
lost.

The running mean of n values contains the value itself, so independent noise of variance v leaves (1 - 1/n) v around it.
The differences from the trend are therefore divided by sqrt(1 - 1/n). A series of one value has no noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from squelch.kit.diagnosis.uncertainty import wilson_interval

BLOCK = 4


def renoised(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """`values` (n,) with the noise resampled: (n,)."""
    count = len(values)
    near = [values[max(0, i - BLOCK) : i + BLOCK + 1] for i in range(count)]
    trend = np.array([part.mean() for part in near])
    left = np.sqrt([1 - 1 / max(2, len(part)) for part in near])
    noise, drawn = (values - trend) / left, np.zeros(0)
    while len(drawn) < count:
        start = int(rng.integers(max(1, count - BLOCK + 1)))
        drawn = np.append(drawn, noise[start : start + BLOCK])
    return trend + drawn[:count]


def share(raised: Sequence[bool]) -> dict[str, Any]:
    """In how many of the series something was raised, with Wilson's interval of their share."""
    low, high = wilson_interval(sum(raised), len(raised))
    return {"series": len(raised), "raised": sum(raised), "rate": sum(raised) / len(raised), "interval": [low, high]}
