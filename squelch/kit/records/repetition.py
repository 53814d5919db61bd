"""How much a text repeats itself. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import islice

RUN = 4
"""Tokens of a run that is compared."""
FEWEST = 12
"""Tokens of a text whose repetition is measured."""


def repetition(parts: Sequence[Hashable]) -> float | None:
    """Share of the runs of `RUN` tokens, or words, that occurred in the text before, 0 to 1; None below `FEWEST`."""
    if len(parts) < FEWEST:
        return None
    runs = zip(*(islice(parts, start, None) for start in range(RUN)), strict=False)
    return 1 - len(set(runs)) / (len(parts) - RUN + 1)
