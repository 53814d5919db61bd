"""Ranks one window and applies its rule (paper, section 3.3 and appendix G; docs/guide/filter.md). Invariants:

- A refused group has score NaN and is never selected; it still counts in the window's number of groups N.
- Groups are ranked by score, and by `order` at equal scores, so the order of arrival does not affect the result.
- Under `compat: paper` a window whose scores are all zero selects nothing under every rule but `none`.

A rule's own settings act in its function in `rules.py`: `rho` and `epsilon` of top-p in `_top_p`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from squelch.kit.filter.metrics import count_zero, kept_fraction, kept_mass
from squelch.kit.filter.ranked_scores import RankedScores
from squelch.kit.filter.rules import RULES
from squelch.kit.filter.settings import FilterConfig
from squelch.kit.filter.statistics import ROUNDING, STATISTICS, ZERO

Code = Literal["selected", "floor", "zero", "no_signal", "below_threshold", "refused", "passthrough"]
"""Short causes for metric labels; the reason's text is for people and the archive."""


@dataclass(frozen=True)
class Mask:
    """A rule's selection. `kept`: (n,) bool; `cut`: the worst kept score, None if no group is kept; `all_zero`: whether
    every valid score of the window is zero; `rejection`: why nothing is kept, empty if a group is."""

    kept: np.ndarray
    threshold: float | None
    cut: float | None
    all_zero: bool
    rejection: str = ""


def pick(scores: np.ndarray, order: np.ndarray, config: FilterConfig) -> Mask:
    """Applies the rule. `scores`: (n,) float64, NaN for refused groups; `order`: (n,) ticket order, which breaks ties.

    Raises ValueError if a rule that needs non-negative scores meets a negative one.
    """
    scores, rule = tied(scores), RULES[config.rule]
    valid = np.isfinite(scores)
    zero = np.abs(scores) <= ZERO
    all_zero = bool(np.count_nonzero(zero) == np.count_nonzero(valid))
    if rule.non_negative:
        refuse_negative(scores, config, rule.non_negative)
    eligible = valid & ~zero if rule.filters and not config.include_zero else valid
    (positions,) = eligible.nonzero()
    kept = np.zeros(len(scores), dtype=bool)
    rejects_all = all_zero and rule.filters and config.compat == "paper"
    if rejects_all or not len(positions):
        return Mask(kept, None, None, all_zero, _without_signal(valid))
    ranking = positions[best_first(scores[positions], order[positions], config)]
    ranked = RankedScores(scores[ranking], len(scores))
    chosen, threshold = rule.pick(ranked, config)
    kept[ranking[chosen]] = True
    passed = scores[kept]
    if len(passed):
        cut = float(passed.min() if config.keep == "largest" else passed.max())
        return Mask(kept, threshold, cut, all_zero)
    why = _without_signal(valid) if all_zero or rule.why_nothing is None else rule.why_nothing(ranked, config)
    return Mask(kept, threshold, None, all_zero, why)


def _without_signal(valid: np.ndarray) -> str:
    """Why a window without a score above zero is rejected. `valid`: (n,) bool, False for refused groups."""
    num_valid = int(np.count_nonzero(valid))
    refused = f"{len(valid) - num_valid} of {len(valid)} groups were refused"
    if not num_valid:
        return refused
    zeros = "every score is zero; only filter.rule=none or filter.on_no_signal=passthrough would keep groups"
    return zeros if num_valid == len(valid) else f"{zeros} ({refused})"


def best_first(scores: np.ndarray, order: np.ndarray, config: FilterConfig) -> np.ndarray:
    """(n,) positions, the best score first; `order`: ticket order, which breaks ties. NaN comes last."""
    return np.lexsort((order, -scores if config.keep == "largest" else scores))


def tied(scores: np.ndarray) -> np.ndarray:
    """The scores, where neighbours in rank that differ by at most a relative `ROUNDING` all have the smallest's value:
    equal variances that were summed in different orders differ in their last bits, and would be ranked by that noise
    instead of by ticket. NaN stays NaN."""
    rank = np.argsort(scores)
    ordered = scores[rank]
    apart = ~(np.diff(ordered) <= ROUNDING * np.abs(ordered[1:]))
    firsts = np.flatnonzero(np.concatenate([[True], apart])[: len(scores)])
    found = np.empty_like(scores)
    found[rank] = np.repeat(ordered[firsts], np.diff(firsts, append=len(scores)))
    return found


def refuse_negative(scores: np.ndarray, config: FilterConfig, why: str) -> None:
    """Raises ValueError if a score is negative, so that a share of a sum, or a ratio of scores, would mean nothing.
    `why`: what the rule does with scores."""
    lowest = np.fmin.reduce(scores, initial=0.0)
    if lowest < -ZERO:
        signed = ", ".join(entry.name for entry in STATISTICS.values() if entry.may_be_negative)
        raise ValueError(
            f"filter.rule={config.rule} {why} and needs non-negative scores, but "
            f"filter.statistic={config.statistic} has the value {lowest:.6g}; use a statistic that cannot be negative "
            f"(all but {signed}), or a rule that only ranks: top_k, top_p_softmax, band"
        )


@dataclass(frozen=True)
class Selection:
    """The result of a rule on a window. `codes` and `reasons` have one entry per group."""

    kept: tuple[int, ...]
    """Positions of the kept groups, ascending."""
    threshold: float | None
    """The rule's threshold, in the rule's own unit; None if the rule compared nothing."""
    kept_mass: float | None
    """Share of the summed reward variance that the kept groups hold, [0, 1]; None if the sum is 0."""
    kept_fraction: float
    """Kept groups divided by all groups of the window, including refused ones."""
    num_zero: int
    """Groups with |score| <= 1e-10."""
    codes: tuple[Code, ...]
    reasons: tuple[str, ...]
    rejection: str
    """Why nothing is kept, and which setting would have kept groups; empty if a group is kept."""


def select(
    scores: np.ndarray,
    order: np.ndarray | None,
    config: FilterConfig,
    *,
    variances: np.ndarray | None = None,
    refusals: Sequence[str | None] | None = None,
) -> Selection:
    """Ranks one whole window.

    `scores`: (n,) float64, NaN for refused groups; `order`: (n,) ticket order, None for the given order; `variances`:
    (n,) reward variances for the kept mass, by default the scores if they are variances. Raises ValueError if a rule
    that sums scores meets a negative score.
    """
    scores = np.asarray(scores, dtype=np.float64)
    ticket_order = np.arange(len(scores)) if order is None else np.asarray(order)
    if variances is None and config.statistic == "reward_variance" and config.compat == "paper":
        variances = scores
    mask = pick(scores, ticket_order, config)
    causes = refusals if refusals is not None else [None] * len(scores)
    values, flags = scores.tolist(), mask.kept.tolist()
    texts = [explain(*row, mask, config) for row in zip(values, flags, causes, strict=True)]
    return Selection(
        kept=tuple(np.flatnonzero(mask.kept).tolist()),
        threshold=mask.threshold,
        kept_mass=None if variances is None else kept_mass(np.asarray(variances, np.float64).tolist(), flags),
        kept_fraction=kept_fraction(flags),
        num_zero=count_zero(values),
        codes=tuple(code for code, _ in texts),
        reasons=tuple(reason for _, reason in texts),
        rejection=mask.rejection,
    )


def explain(value: float, kept: bool, refusal: str | None, mask: Mask, config: FilterConfig) -> tuple[Code, str]:
    """The code and the reason why one group was kept, dropped or refused."""
    if value != value:
        return "refused", refusal or "score is not finite"
    if kept:
        return "selected", f"in {config.rule}, score {value:.4g}" if RULES[config.rule].filters else "valid"
    if abs(value) <= ZERO and not config.include_zero:
        statistic = STATISTICS[config.statistic]
        name = config.statistic.split("_")[-1] if statistic.needs > 1 else config.statistic
        return "zero", statistic.zero or f"zero {name}"
    if mask.all_zero:
        return "no_signal", "every score of the window is zero"
    if mask.cut is None:
        return "no_signal", f"nothing selected: {config.rule} threshold {mask.threshold:.4g}, score {value:.4g}"
    side = "tied at" if math.isclose(value, mask.cut, rel_tol=ROUNDING) else "below" if value < mask.cut else "above"
    cut = f"{config.rule} cut {mask.cut:.4g}"
    return "below_threshold", f"{side} {cut}: score {value:.4g}, threshold {mask.threshold:.4g}"
