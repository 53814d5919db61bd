"""A claim, its region, and the verdict on an estimate. Pure.

A claim says that a statistic lies in a region. It **holds** if the whole 95% interval lies in the region. It **fails**
if the whole interval lies outside, or nearer to the wrong side of a bound than the smallest effect that would matter
(the `tolerance`, 0 unless the claim has one). Otherwise it is **not significant**, and likewise if there are fewer runs
than the claim asks for. A claim of which no seed has all the runs that it needs is **not run**.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from research.claims.statistics import Estimate, Pool

Verdict = Literal["holds", "fails", "not significant", "not run"]


@dataclass(frozen=True)
class Region:
    """The claimed values: above `low` and below `high`. `tolerance`: the smallest effect that would matter."""

    low: float = -math.inf
    high: float = math.inf
    tolerance: float = 0.0

    @property
    def text(self) -> str:
        """The region in words."""
        matters = f" (by {self.tolerance:g} to matter)" if self.tolerance else ""
        if math.isinf(self.high):
            return f"above {self.low:g}{matters}"
        if math.isinf(self.low):
            return f"below {self.high:g}{matters}"
        return f"between {self.low:g} and {self.high:g}"


def above(bound: float, tolerance: float = 0.0) -> Region:
    """Values above the bound."""
    return Region(low=bound, tolerance=tolerance)


def below(bound: float, tolerance: float = 0.0) -> Region:
    """Values below the bound."""
    return Region(high=bound, tolerance=tolerance)


def within(bound: float) -> Region:
    """Values nearer to 0 than the bound."""
    return Region(-bound, bound)


@dataclass(frozen=True)
class Claim:
    """One claim. `source`: the figure, table or section; `says`: the claim in words; `where`: environment, arms and
    horizon; `statistic`: what is computed; `least`: number of runs, or pairs of runs, below which nothing is said."""

    source: str
    says: str
    where: str
    statistic: str
    of: Callable[[Pool], Estimate]
    region: Region
    least: int = 3


def verdict(found: Estimate, claim: Claim) -> Verdict:
    """The verdict on a claim's estimate."""
    low, high, region = found.low, found.high, claim.region
    if not found.runs and not found.note:  # a note says why runs that are there do not count
        return "not run"
    if found.runs < claim.least or low is None or high is None:
        return "not significant"
    if region.low < low and high < region.high:
        return "holds"
    if high < region.low + region.tolerance or low > region.high - region.tolerance:
        return "fails"
    if low == high and low in (region.low, region.high):  # a point on the bound, of runs without any spread
        return "fails"
    return "not significant"
