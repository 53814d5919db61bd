"""The selection rules: one function and one table entry each (paper, section 3.3 and appendix G; docs/guide/filter.md).

To add a rule, write a function of the ranked groups, and one of its stricter settings, and add an entry to `RULES`:
settings, `squelch filter` and docs/guide/filter.md take its name from this table. This module does not import numpy,
because settings check rule names against the table and the command line must start fast;
`kit.filter.ranked_scores` has the shared array operations, `kit.filter.settings` epsilon, rho and their defaults.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from squelch.kit.filter.statistics import ROUNDING, ZERO, Compat

if TYPE_CHECKING:
    import numpy as np

    from squelch.kit.filter.ranked_scores import RankedScores

Keep = Literal["largest", "smallest"]
EpsilonUnit = Literal["relative", "absolute"]
Picked = tuple["np.ndarray", float | None]
"""Mask over the ranked scores, (m,) bool, and the rule's threshold, in the rule's own unit."""
Changes = dict[str, Any]
"""Settings by key under `filter`."""
LEAST_RHO, MOST_RHO = 0.1, 0.95
"""The strictest shares that `stricter` goes to: of the summed scores, and of the largest score."""


class RuleSettings(Protocol):
    """The settings that rules read; `kit.filter.settings.FilterConfig` has them, and names rules by this table."""

    @property
    def rule(self) -> str: ...
    @property
    def target(self) -> Literal["groups", "regulariser", "task"]: ...
    @property
    def rho(self) -> float: ...
    @property
    def band(self) -> tuple[float, float]: ...
    @property
    def keep(self) -> Keep: ...
    @property
    def epsilon(self) -> float: ...
    @property
    def unit_of_epsilon(self) -> EpsilonUnit: ...
    @property
    def compat(self) -> Compat: ...


@dataclass(frozen=True)
class Rule:
    """A rule that selects among ranked groups."""

    name: str
    pick: Callable[[RankedScores, RuleSettings], Picked]
    settings: tuple[str, ...]
    """The filter settings that this rule reads in addition to `statistic`, `keep` and `include_zero`."""
    keeps: str
    """Description of the groups that the rule keeps; a noun phrase."""
    stricter: Callable[[RuleSettings, int], Changes] = field(kw_only=True)
    """What the function `stricter` returns for this rule."""
    keeps_smallest: str = "the same, from the smallest score"
    """The same under `keep: smallest`."""
    filters: bool = True
    """False for the rule that keeps every valid group, including zeros; its loss is not scaled."""
    non_negative: str = ""
    """Why scores must not be negative, a verb phrase; empty if they may be."""
    why_nothing: Callable[[RankedScores, RuleSettings], str] | None = None
    """Why the rule selected none of these groups, and which setting would have kept some; None if it always selects
    one."""


def _none(ranked: RankedScores, config: RuleSettings) -> Picked:
    return ranked.first(len(ranked)), None


def _as_by_default(config: RuleSettings, num_groups: int) -> Changes:
    """Top-p; settings that `none` does not read may have values that top-p refuses."""
    unread = {"statistic": "reward_variance", "keep": "largest", "epsilon": 0.01}
    return {"rule": "top_p", "rho": 0.9} | {key: own for key, own in unread.items() if getattr(config, key) != own}


def _top_p(ranked: RankedScores, config: RuleSettings) -> Picked:
    """Section 3.3: the shortest prefix whose mass reaches rho * sum - epsilon. A relative epsilon is a share of the
    largest score: the result does not depend on the scale of the rewards, and the best group is always kept. Under an
    absolute one a threshold <= 0 selects nothing. rho = 1 keeps all eligible groups."""
    if config.rho >= 1:
        return ranked.first(len(ranked)), ranked.mass
    is_ragen, is_absolute = config.compat == "ragen", config.unit_of_epsilon == "absolute"
    threshold = config.rho * ranked.mass - config.epsilon * (1.0 if is_absolute else ranked.largest)
    if (is_absolute and threshold <= 0) or (is_ragen and ranked.best <= 0):
        return ranked.first(0), threshold
    return ranked.reaching(threshold, exact=is_ragen), threshold


def _half_rho(config: RuleSettings, num_groups: int) -> Changes:
    rho = round(config.rho / 2, 4)
    return {"rho": rho} if rho >= LEAST_RHO else {}


def _why_not_top_p(ranked: RankedScores, config: RuleSettings) -> str:
    if config.compat == "ragen" and ranked.best <= 0:
        return "compat=ragen selects nothing after a smallest score of 0; filter.include_zero=false would keep groups"
    share = config.rho * ranked.mass
    unit = ", or filter.epsilon_unit=relative," if config.compat == "paper" else ""
    return (
        f"rho * sum of the scores is {share:.3g}, which is not above the absolute filter.epsilon={config.epsilon:g}; "
        f"filter.epsilon below {share:.3g}{unit} would keep groups"
    )


def _top_p_softmax(ranked: RankedScores, config: RuleSettings) -> Picked:
    """The other form in the authors' code: the mass is softmax(scores), or softmax(-scores) for `keep: smallest`."""
    if config.rho >= 1:
        return ranked.first(len(ranked)), 1.0
    weighted = ranked.softmax(1 if config.keep == "largest" else -1)
    return weighted.reaching(config.rho), config.rho


def _top_k(ranked: RankedScores, config: RuleSettings) -> Picked:
    """Appendix G.1: the best floor(rho N) groups; N includes zero-variance and refused groups. `ragen`: int(rho N), at
    least 1."""
    share = config.rho * ranked.num_groups
    count = max(1, int(share)) if config.compat == "ragen" else math.floor(share + 1e-9)
    return ranked.first(count), float(count)


def _half_as_many(config: RuleSettings, num_groups: int) -> Changes:
    count = math.floor(config.rho * num_groups + 1e-9) // 2
    return {"rho": math.ceil(1e4 * count / num_groups) / 1e4} if count else {}


def _why_not_top_k(ranked: RankedScores, config: RuleSettings) -> str:
    return (
        f"filter.rho={config.rho:g} of {ranked.num_groups} groups is less than one group; filter.rho of at least "
        f"1/{ranked.num_groups} would keep groups"
    )


def _min_p(ranked: RankedScores, config: RuleSettings) -> Picked:
    """Appendix G.1: score >= rho * max; with `keep: smallest`, score <= min / rho."""
    largest = config.keep == "largest"
    threshold = config.rho * ranked.best if largest else ranked.best / config.rho
    slack = ZERO if config.compat == "ragen" else ROUNDING * threshold
    return ranked.scores >= threshold - slack if largest else ranked.scores <= threshold + slack, threshold


def _nearer_the_largest(config: RuleSettings, num_groups: int) -> Changes:
    rho = round((1 + config.rho) / 2, 4)
    return {"rho": rho} if rho <= MOST_RHO else {}


def _band(ranked: RankedScores, config: RuleSettings) -> Picked:
    """Scores between two quantiles of the eligible scores, including both ends. With `keep: smallest`, quantiles count
    from the top, so that band (0, 0.5) is the upper half."""
    low, high = config.band
    if config.keep == "smallest":
        low, high = 1 - high, 1 - low
    bottom, top = ranked.quantiles(low, high)
    return (ranked.scores >= bottom) & (ranked.scores <= top), bottom


def _upper_half(config: RuleSettings, num_groups: int) -> Changes:
    """The upper half of the band, where that surely holds a score: the largest, or one between two quantiles that are
    at least a score apart."""
    low, high = config.band
    holds_one = (high - low) * (num_groups - 1) >= (1 if high == 1 else 2)
    return {"band": [round((low + high) / 2, 4), high]} if holds_one else {}


def _why_not_band(ranked: RankedScores, config: RuleSettings) -> str:
    low, high = config.band
    return f"no score lies in filter.band={low:g}..{high:g}; a wider band would keep groups"


RULES: Mapping[str, Rule] = {
    entry.name: entry
    for entry in (
        Rule("none", _none, (), "every valid group, zeros too", "the same", stricter=_as_by_default, filters=False),
        Rule(
            "top_p",
            _top_p,
            ("rho", "epsilon", "epsilon_unit"),
            "the best groups until their scores sum to at least rho * sum - epsilon * (largest score)",
            "the same, from the smallest score (appendix G.1, reverse top-p)",
            stricter=_half_rho,
            non_negative="keeps a share of summed scores",
            why_nothing=_why_not_top_p,
        ),
        Rule(
            "top_p_softmax",
            _top_p_softmax,
            ("rho",),
            "the shortest prefix whose softmax(scores) sums to at least rho",
            "the same with softmax(-scores)",
            stricter=_half_rho,
        ),
        Rule(
            "top_k",
            _top_k,
            ("rho",),
            "the floor(rho * N + 1e-9) best of all N groups; 0 selects nothing",
            "as many with the smallest scores",
            stricter=_half_as_many,
            why_nothing=_why_not_top_k,
        ),
        Rule(
            "min_p",
            _min_p,
            ("rho",),
            "groups with score >= rho * (largest score)",
            "groups with score <= (smallest score) / rho",
            stricter=_nearer_the_largest,
            non_negative="compares scores by their ratio",
        ),
        Rule(
            "band",
            _band,
            ("band",),
            "groups between two quantiles of the eligible scores, ends included",
            "the same, with quantiles counted from the top",
            stricter=_upper_half,
            why_nothing=_why_not_band,
        ),
    )
}


def stricter(settings: RuleSettings, num_groups: int) -> Changes:
    """The settings to change for a filter that leaves fewer groups of small scores. `num_groups`: groups that are
    ranked together.

    Empty where the rule keeps hardly more than one group, or a stricter rule would do harm: with `keep: smallest` the
    groups of small scores are those that are left, and with `target: task` every group enters the regularisers, and
    fewer the surrogate beside them.
    """
    rule = RULES[settings.rule]
    if settings.target == "task" or (rule.filters and settings.keep == "smallest"):
        return {}
    return rule.stricter(settings, num_groups)
