"""Group statistics and selection rules of the filter (paper, section 3.3 and appendix G; design: docs/filter.md).

Pure numpy in float64: importing this loads neither torch, Ray, vLLM nor pyarrow. Invariants:

- A refused group (non-finite reward, too few survivors) has score NaN and is never selected; it still counts in the
  window's number of groups N.
- The ranking is by score, ties by `order`, so that the result does not depend on the order in which groups arrive.
- Under `compat: paper` a window whose scores are all zero selects nothing under every rule but `none`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from actors.config import FilterConfig, Rule, Statistic

if TYPE_CHECKING:
    from actors.records import GroupSummary

ZERO = 1e-10
"""A score of at most this absolute value is zero (design decision 2; the same bound as in the authors' code)."""
ROUNDING = 1e-12
"""Share of the window's sum that a cumulative sum may lack through rounding and still have reached its threshold."""

Compat = Literal["paper", "ragen"]
Code = Literal["selected", "zero", "no_signal", "below_threshold", "refused", "passthrough"]
"""Short causes, fit for a metric's label; the text beside them is for people and the archive."""

NEEDS_TWO: frozenset[Statistic] = frozenset({"reward_variance", "reward_std", "entropy_variance"})
MASS_RULES: frozenset[Rule] = frozenset({"top_p"})


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """What a group's score is computed from. Arrays are (num_survivors,) float64; None where the source has none."""

    group_id: str
    step: int
    group_size: int
    """Trajectories that were asked for, failed ones included."""
    indices: tuple[int, ...]
    """Index in the group of each survivor."""
    returns: np.ndarray
    """Episode returns, format penalty left out."""
    penalties: np.ndarray | None = None
    """Format penalties, <= 0."""
    lengths: np.ndarray | None = None
    """Sampled tokens."""
    surprisals: np.ndarray | None = None
    """Mean -log p of the sampled tokens, nats."""

    @property
    def num_failed(self) -> int:
        return self.group_size - len(self.indices)

    @classmethod
    def of(cls, summary: GroupSummary) -> GroupStatistics:
        """From a group's summary, which holds survivors only."""
        return cls(
            summary.group_id,
            summary.step,
            summary.group_size,
            summary.indices,
            summary.returns,
            summary.format_penalties,
            summary.lengths,
            summary.surprisals,
        )

    @classmethod
    def from_row(cls, group_id: str, step: int, rewards: np.ndarray, **columns: np.ndarray | None) -> GroupStatistics:
        """From one row of (group_size,) arrays; a NaN reward marks a failed trajectory. `columns` may hold
        `penalties`, `lengths`, `surprisals`."""
        alive = np.flatnonzero(~np.isnan(rewards))
        parts = {key: None if value is None else np.asarray(value, np.float64)[alive] for key, value in columns.items()}
        returns = np.asarray(rewards, np.float64)[alive]
        return cls(group_id, step, len(rewards), tuple(alive.tolist()), returns, **parts)


@dataclass(frozen=True)
class Measured:
    """The figures of n groups, in their order. `scores`, `variances`, `means`: (n,) float64, NaN where refused."""

    scores: np.ndarray
    variances: np.ndarray
    """Sample variance (ddof = 1) of the returns, penalty left out, whatever the statistic; 0 for a lone survivor."""
    means: np.ndarray
    """Mean return, penalty left out."""
    refusals: list[str | None]


def survivors_needed(statistic: Statistic, rule: Rule, group_size: int) -> int:
    """Survivors below which a group is refused: two, or one where groups of one were asked for and suffice."""
    if rule != "none" and statistic in NEEDS_TWO:
        return 2
    return min(2, group_size)


def _rewards(group: GroupStatistics, compat: Compat) -> np.ndarray:
    """The rewards that are scored: returns; under `ragen` with the format penalties inside."""
    if compat == "ragen" and group.penalties is not None:
        return group.returns + group.penalties
    return group.returns


def _values(groups: Sequence[GroupStatistics], statistic: Statistic, compat: Compat) -> np.ndarray:
    """What the statistic reduces, (num_groups, num_survivors) for groups of equal survivors."""
    if statistic == "length":
        columns = [group.lengths for group in groups]
    elif statistic in ("entropy", "entropy_variance"):
        columns = [group.surprisals for group in groups]
    else:
        columns = [_rewards(group, compat) for group in groups]
    if any(column is None for column in columns):
        key = "lengths" if statistic == "length" else "surprisals"
        raise ValueError(f"statistic {statistic} needs `{key}`, (num_groups, group_size), which the data do not have")
    return np.array(columns, dtype=np.float64)


def _sample_variance(values: np.ndarray) -> np.ndarray:
    """(n, g) -> (n,), ddof = 1; 0 where g is 1. Two passes, without the overhead of np.var."""
    size = values.shape[1]
    if size < 2:
        return np.zeros(len(values))
    deviations = values - _means(values)[:, None]
    return np.add.reduce(deviations * deviations, axis=1) / (size - 1)


def _means(values: np.ndarray) -> np.ndarray:
    """(n, g) -> (n,)."""
    return np.add.reduce(values, axis=1) / values.shape[1]


def _reduce(values: np.ndarray, statistic: Statistic, compat: Compat) -> np.ndarray:
    """(n, g) -> scores (n,). `ragen` scores the standard deviation under the name of reward variance."""
    if statistic == "reward_sum":
        return values.sum(axis=1)
    if statistic in ("reward_mean", "entropy", "length"):
        return _means(values)
    variance = _sample_variance(values)
    is_deviation = statistic == "reward_std" or (statistic == "reward_variance" and compat == "ragen")
    return np.sqrt(variance) if is_deviation else variance


def measure(
    groups: Sequence[GroupStatistics], statistic: Statistic, compat: Compat = "paper", rule: Rule = "top_p"
) -> Measured:
    """Scores of many groups; those with equally many survivors are reduced in one numpy call."""
    figures = np.full((3, len(groups)), np.nan)
    refusals: list[str | None] = [None] * len(groups)
    by_survivors: dict[tuple[int, int], list[int]] = {}
    for position, group in enumerate(groups):
        by_survivors.setdefault((len(group.indices), group.group_size), []).append(position)
    for (survivors, group_size), positions in by_survivors.items():
        needed = survivors_needed(statistic, rule, group_size)
        if survivors < needed:
            reason = f"{survivors} survivor{'s' * (survivors != 1)} of {group_size}, needs {needed}"
            for position in positions:
                refusals[position] = reason
        else:
            members = [groups[position] for position in positions]
            found, reasons = _measure_equal(members, statistic, compat)
            figures[:, positions] = found
            for position, refusal in reasons.items():
                refusals[positions[position]] = refusal
    return Measured(figures[0], figures[1], figures[2], refusals)


def _measure_equal(
    groups: Sequence[GroupStatistics], statistic: Statistic, compat: Compat
) -> tuple[np.ndarray, dict[int, str]]:
    """(score, variance, mean) as (3, n) of groups with equally many survivors, and the reasons of refused ones."""
    values = _values(groups, statistic, compat)
    is_return = statistic.startswith("reward") and compat == "paper"
    returns = values if is_return else np.array([group.returns for group in groups], dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        variances = _sample_variance(returns)
        is_variance = statistic == "reward_variance" and compat == "paper"
        scores = variances if is_variance else _reduce(values, statistic, compat)
        figures = np.array([scores, variances, _means(returns)])
    reasons: dict[int, str] = {}
    finite = np.isfinite(figures)
    for position in () if finite.all() else np.flatnonzero(~finite.all(axis=0)).tolist():
        reasons[position] = _why_refused(groups[position], values[position], returns[position], statistic)
        figures[:, position] = np.nan
    return figures, reasons


def _why_refused(group: GroupStatistics, values: np.ndarray, returns: np.ndarray, statistic: Statistic) -> str:
    """Names the first trajectory whose reward, or other scored value, is not finite."""
    for name, row in (("reward", returns), (statistic, values)):
        bad = np.flatnonzero(~np.isfinite(row))
        if len(bad):
            return f"non-finite {name} in trajectory {group.indices[bad[0]]}"
    return f"non-finite {statistic}: the rewards are finite, but too large to be squared"


def score(statistic: Statistic, group: GroupStatistics, compat: Compat = "paper") -> float:
    """One group's score; NaN if the group is refused."""
    return float(measure([group], statistic, compat).scores[0])


@dataclass(frozen=True)
class Ranked:
    """What a rule sees: `scores` (m,) of the eligible groups, best first under `config.keep`; N of the window."""

    scores: np.ndarray
    num_groups: int
    config: FilterConfig


Picked = tuple[np.ndarray, float | None]
"""Mask over the ranked scores, (m,) bool, and the threshold that the rule applied, in its own unit."""


def _prefix(ranked: Ranked, count: int) -> np.ndarray:
    return np.arange(len(ranked.scores)) < count


def _none(ranked: Ranked) -> Picked:
    """Every valid group."""
    return _prefix(ranked, len(ranked.scores)), None


def _top_p(ranked: Ranked) -> Picked:
    """Section 3.3: the shortest prefix whose mass reaches rho * sum - epsilon. A threshold <= 0 selects nothing: that
    is how a weak window is rejected. rho = 1 keeps all that are left."""
    config, cumulative = ranked.config, np.cumsum(ranked.scores)
    total = float(cumulative[-1])
    if config.rho >= 1:
        return _prefix(ranked, len(cumulative)), total
    threshold = config.rho * total - config.epsilon
    blocked = config.compat == "ragen" and ranked.scores[0] <= 0
    if threshold <= 0 or blocked:
        return _prefix(ranked, 0), threshold
    slack = 0.0 if config.compat == "ragen" else ROUNDING * total
    return _prefix(ranked, int(np.searchsorted(cumulative, threshold - slack)) + 1), threshold


def _top_p_softmax(ranked: Ranked) -> Picked:
    """The authors' other form: the mass is softmax(scores), or softmax(-scores) for the smallest."""
    config = ranked.config
    logits = ranked.scores if config.keep == "largest" else -ranked.scores
    weights = np.exp(logits - logits.max())
    cumulative = np.cumsum(weights / weights.sum())
    if config.rho >= 1:
        return _prefix(ranked, len(cumulative)), 1.0
    return _prefix(ranked, int(np.searchsorted(cumulative, config.rho - ROUNDING)) + 1), config.rho


def _top_k(ranked: Ranked) -> Picked:
    """Appendix G.1: floor(rho N) of all N groups, zeros and refused ones counted. `ragen`: int(rho N), at least 1."""
    share = ranked.config.rho * ranked.num_groups
    count = max(1, int(share)) if ranked.config.compat == "ragen" else int(np.floor(share + 1e-9))
    return _prefix(ranked, count), float(count)


def _min_p(ranked: Ranked) -> Picked:
    """Appendix G.1: score >= rho * max; keeping the smallest, score <= min / rho."""
    config, best = ranked.config, float(ranked.scores[0])
    slack = ZERO if config.compat == "ragen" else 0.0
    if config.keep == "largest":
        threshold = config.rho * best
        return ranked.scores >= threshold - slack, threshold
    threshold = best / config.rho
    return ranked.scores <= threshold + slack, threshold


def _band(ranked: Ranked) -> Picked:
    """Scores between two quantiles of the eligible scores, ends included; keeping the smallest counts quantiles from
    the top, so that band (0, 0.5) is the upper half."""
    low, high = ranked.config.band
    if ranked.config.keep == "smallest":
        low, high = 1 - high, 1 - low
    bottom, top = np.quantile(ranked.scores, [low, high])
    return (ranked.scores >= bottom) & (ranked.scores <= top), float(bottom)


RULES: dict[Rule, Callable[[Ranked], Picked]] = {
    "none": _none,
    "top_p": _top_p,
    "top_p_softmax": _top_p_softmax,
    "top_k": _top_k,
    "min_p": _min_p,
    "band": _band,
}


@dataclass(frozen=True)
class Mask:
    """Which groups of a window a rule picks. `kept`: (n,) bool; `cut`: the kept score nearest to being dropped."""

    kept: np.ndarray
    threshold: float | None
    cut: float | None
    all_zero: bool


def without_rounding(scores: np.ndarray) -> np.ndarray:
    """Scores to 40 bits, a relative 1e-12: equal variances that were summed in another order differ in their last bits,
    and would rank by that noise instead of by ticket."""
    mantissa, exponent = np.frexp(scores)
    return np.ldexp(np.round(np.ldexp(mantissa, 40)), exponent - 40)


def pick(scores: np.ndarray, order: np.ndarray, config: FilterConfig) -> Mask:
    """Applies the rule. `scores`: (n,) float64, NaN where refused; `order`: (n,) ticket order, breaks ties."""
    scores = without_rounding(scores)
    valid = np.isfinite(scores)
    zero = np.abs(scores) <= ZERO
    all_zero = np.count_nonzero(zero) == np.count_nonzero(valid)
    refuse_negative(scores, config)
    eligible = valid & ~zero if config.rule != "none" and not config.include_zero else valid
    (positions,) = eligible.nonzero()
    kept = np.zeros(len(scores), dtype=bool)
    rejects_all = all_zero and config.rule != "none" and config.compat == "paper"
    if rejects_all or not len(positions):
        return Mask(kept, None, None, all_zero)
    keys = -scores[positions] if config.keep == "largest" else scores[positions]
    ranking = positions[np.lexsort((order[positions], keys))]
    chosen, threshold = RULES[config.rule](Ranked(scores[ranking], len(scores), config))
    kept[ranking[chosen]] = True
    passed, cut = scores[kept], None
    if len(passed):
        cut = float(passed.min() if config.keep == "largest" else passed.max())
    return Mask(kept, threshold, cut, all_zero)


def refuse_negative(scores: np.ndarray, config: FilterConfig) -> None:
    """Raises ValueError if a mass rule meets a negative score: a share of a sum of both signs means nothing."""
    if config.rule not in MASS_RULES or not len(scores):
        return
    lowest = np.fmin.reduce(scores)
    if lowest < -ZERO:
        raise ValueError(
            f"filter.rule={config.rule} keeps a share of summed scores and needs them non-negative, but "
            f"filter.statistic={config.statistic} reached {lowest:.6g}; use reward_variance, or a rule that only "
            "ranks: top_k, top_p_softmax, band"
        )


@dataclass(frozen=True)
class Selection:
    """A window after its rule. `codes` and `reasons` have one entry per group."""

    kept: tuple[int, ...]
    """Positions of the kept groups, ascending."""
    threshold: float | None
    """What the rule compared with, in the rule's own unit; None if it compared nothing."""
    kept_mass: float | None
    """Share of the summed reward variance that the kept groups hold, [0, 1]; None when the sum is 0."""
    kept_fraction: float
    """Kept groups over all groups of the window, refused ones counted."""
    num_zero: int
    """Groups with |score| <= 1e-10."""
    codes: tuple[Code, ...]
    reasons: tuple[str, ...]


def kept_mass(variances: np.ndarray, kept: np.ndarray) -> float | None:
    """Share of the summed reward variance in the kept groups; `variances` (n,), NaN where refused, `kept` (n,) bool."""
    total = float(np.nansum(variances))
    if total <= 0:
        return None
    return min(1.0, float(np.nansum(variances[kept])) / total)


def count_zero(scores: np.ndarray) -> int:
    """Groups whose score is zero; refused ones (NaN) do not count."""
    return int((np.abs(scores) <= ZERO).sum())


def select(
    scores: np.ndarray,
    order: np.ndarray | None,
    config: FilterConfig,
    *,
    variances: np.ndarray | None = None,
    refusals: Sequence[str | None] | None = None,
) -> Selection:
    """Ranks one whole window.

    `scores`: (n,) float64, NaN where refused; `order`: (n,) ticket order, None for the order given; `variances`: (n,)
    reward variances for the kept mass, by default the scores where they are variances. Raises ValueError when a mass
    rule meets a negative score.
    """
    scores = np.asarray(scores, dtype=np.float64)
    ticket_order = np.arange(len(scores)) if order is None else np.asarray(order)
    if variances is None and config.statistic == "reward_variance" and config.compat == "paper":
        variances = scores
    mask = pick(scores, ticket_order, config)
    causes = refusals if refusals is not None else [None] * len(scores)
    flags = mask.kept.tolist()
    texts = [explain(*row, mask, config) for row in zip(scores.tolist(), flags, causes, strict=True)]
    return Selection(
        kept=tuple(np.flatnonzero(mask.kept).tolist()),
        threshold=mask.threshold,
        kept_mass=None if variances is None else kept_mass(np.asarray(variances, np.float64), mask.kept),
        kept_fraction=float(mask.kept.mean()) if len(scores) else 0.0,
        num_zero=count_zero(scores),
        codes=tuple(code for code, _ in texts),
        reasons=tuple(reason for _, reason in texts),
    )


def explain(value: float, kept: bool, refusal: str | None, mask: Mask, config: FilterConfig) -> tuple[Code, str]:
    """Why one group was kept, dropped or refused."""
    if value != value:
        return "refused", refusal or "score is not finite"
    if kept:
        return "selected", "valid" if config.rule == "none" else f"in {config.rule}, score {value:.4g}"
    if abs(value) <= ZERO and not config.include_zero:
        what = config.statistic.split("_")[-1] if config.statistic in NEEDS_TWO else config.statistic
        return "zero", f"zero {what}"
    if mask.all_zero:
        return "no_signal", "every score of the window is zero"
    if mask.cut is None:
        return "no_signal", f"nothing selected: {config.rule} threshold {mask.threshold:.4g}, score {value:.4g}"
    tied = math.isclose(value, mask.cut, rel_tol=ROUNDING)
    side = "tied at" if tied else "below" if value < mask.cut else "above"
    cut = f"{config.rule} cut {mask.cut:.4g}"
    return "below_threshold", f"{side} {cut}: score {value:.4g}, threshold {mask.threshold:.4g}"


def describe(config: FilterConfig) -> str:
    """The rule and its settings as text, as archived with every decision."""
    parts = [f"statistic={config.statistic}", f"keep={config.keep}", f"include_zero={str(config.include_zero).lower()}"]
    if config.rule == "band":
        parts.append(f"band={config.band[0]:g}..{config.band[1]:g}")
    elif config.rule != "none":
        parts.append(f"rho={config.rho:g}")
    if config.rule == "top_p":
        parts.append(f"epsilon={config.epsilon:g}")
    window = f"sliding/{config.window_size}" if config.window == "sliding" else "whole"
    return " ".join([config.rule, *parts, f"window={window}", f"compat={config.compat}"])
