"""The scores that a selection rule sees, best first, with the array operations that rules share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from squelch.kit.filter.statistics import ROUNDING


@dataclass(frozen=True)
class RankedScores:
    """A rule's input. `scores`: (m,) scores of the eligible groups, best first; `num_groups`: N of the window."""

    scores: np.ndarray
    num_groups: int

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def best(self) -> float:
        """The best score: the largest, or with `keep: smallest` the smallest."""
        return float(self.scores[0])

    @property
    def largest(self) -> float:
        """The largest score, whichever is the best."""
        return float(self.scores.max())

    @cached_property
    def cumulative(self) -> np.ndarray:
        """(m,) sums of the scores from the best down."""
        return np.cumsum(self.scores)

    @property
    def mass(self) -> float:
        """Sum of the scores."""
        return float(self.cumulative[-1])

    def first(self, count: int) -> np.ndarray:
        """Mask of the `count` best groups, (m,) bool."""
        return np.arange(len(self.scores)) < count

    def reaching(self, mass: float, exact: bool = False) -> np.ndarray:
        """Mask of the shortest prefix whose scores sum to at least `mass`; `exact`: without tolerance for rounding."""
        slack = 0.0 if exact else ROUNDING * self.mass
        return self.first(int(np.searchsorted(self.cumulative, mass - slack)) + 1)

    def softmax(self, sign: Literal[1, -1]) -> RankedScores:
        """The same groups with softmax(sign * scores) as their scores."""
        logits = sign * self.scores
        weights = np.exp(logits - logits.max())
        return RankedScores(weights / weights.sum(), self.num_groups)

    def quantiles(self, low: float, high: float) -> tuple[float, float]:
        """The `low` and `high` quantile of the scores, linear between two of them. A position that is a score's but for
        rounding is that score's, so that a group at an end of a band is in it."""
        ordered = np.sort(self.scores)
        places = np.round((len(ordered) - 1) * np.array([low, high]), 9)
        bottom, top = np.interp(places, np.arange(len(ordered)), ordered)
        return float(bottom), float(top)
