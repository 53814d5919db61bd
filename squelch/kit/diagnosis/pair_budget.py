"""The proxies from a part of the pairs: each reasoning under its own prompt and a random subset of the others.

The mixture of Eq. 1 needs every reasoning under every prompt: with N prompts of K reasonings, N * K * N pairs. Under a
budget each reasoning s gets its own random subset S of the other prompts, so that errors of reasonings average out. Its
own prompt is always scored: the matched term is exact, and it is the mixture's largest term if Z depends on X.

    m_s = w_own exp(L_s,own) + (1 - w_own) sum_(j in S) w_j exp(L_sj) / sum_(j in S) w_j

With equal weights m_s is unbiased, and log m_s is biased downwards (Jensen). The correction is the jackknife over S,
scaled for drawing without replacement (Quenouille 1956):

    log m_s + (1 - |S| / (N - 1)) (|S| - 1) (log m_s - mean_(j in S) log m_s without j)

With all pairs scored the values are exact and the correction is 0. Bias remains if one of many other prompts dominates
the mixture and S rarely contains it, as with rare near-duplicates of a prompt
(tests/kit/diagnosis/test_pair_budget.py has the numbers).

Intervals are Student's t from the delete-one jackknife over prompts: a prompt is removed with its own reasonings, which
carry the noise of their subsets, and from every other mixture; the effect on the mixtures is estimated from the scored
pairs. The mean correction is added in quadrature, because its uncertainty may be as large as the correction.

Retrieval ranks the scored prompts only: chance is 1 / their number, so retrieval accuracy is not comparable with its
value at all pairs. Pure numpy; imports neither torch, Ray nor vLLM.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from squelch.kit.diagnosis.proxies import EmaState, information_bound
from squelch.kit.diagnosis.uncertainty import (
    LEVEL,
    MIN_INTERVAL,
    MIN_PROMPTS,
    RESAMPLES,
    Interval,
    Null,
    null_of,
    t_quantile,
)

MIN_OTHERS = 2
"""Fewest other prompts per reasoning: the jackknife removes one of them."""


@dataclass(frozen=True)
class BudgetMetrics:
    """Proxies in nats per token, MI-Seq-Est and `upper_bound` (as in `Proxies`) in nats per sequence. `intervals`: 95%
    intervals by the same names, empty below 6 prompts; `share`: share of the pairs that were scored, (0, 1];
    `num_candidates`: prompts that each reasoning was scored under, including its own; `retrieval_accuracy`: among those
    prompts, with ties broken at random."""

    mi_est: float
    mi_seq_est: float
    upper_bound: float
    marginal_entropy: float
    marginal_std: float
    conditional_entropy: float
    intervals: dict[str, Interval]
    share: float
    retrieval_chance: float
    retrieval_accuracy: float
    nulls: dict[str, Null]
    """Nulls of retrieval accuracy and of the MI estimates; empty below MIN_PROMPTS prompts."""

    def metrics(self, ema: EmaState | None, epsilon: float) -> dict[str, float]:
        """Flat keys of the metric registry, without the scope and without recall, which needs all pairs. `ema` is
        updated in place with the marginals' std."""
        smooth = self.marginal_std if ema is None else ema.update(self.marginal_std)
        names = ("mi_est", "mi_seq_est", "upper_bound", "marginal_entropy", "conditional_entropy", "retrieval_accuracy")
        flat = {name: value for name, value in vars(self).items() if name in names}
        for name, found in self.intervals.items():
            flat |= {f"{name}_low": found.low, f"{name}_high": found.high}
        for name, null in self.nulls.items():
            flat |= {f"{name}_p_value": null.p_value, f"{name}_null_95": null.point_95}
        if "mi_seq_est" in self.intervals:
            flat["mi_seq_est_standard_error"] = self.intervals["mi_seq_est"].standard_error
        return flat | {
            "retrieval_chance": self.retrieval_chance,
            "mi_zscore": self.mi_est / (self.marginal_std + epsilon),
            "mi_zscore_ema": self.mi_est / (smooth + epsilon),
        }


def others_within(max_pairs: int, num_samples: int, num_prompts: int) -> int:
    """Number of other prompts per reasoning such that num_samples * (1 + others) <= max_pairs; at least MIN_OTHERS
    (even beyond the budget), at most all of them."""
    return min(num_prompts - 1, max(MIN_OTHERS, max_pairs // max(1, num_samples) - 1))


def draw_pairs(source: np.ndarray, num_prompts: int, num_others: int, seed: Sequence[int]) -> np.ndarray:
    """(num_samples, num_prompts) bool: each reasoning's own prompt and `num_others` random other prompts.

    Raises ValueError unless 1 <= num_others <= num_prompts - 1.
    """
    if not 1 <= num_others <= num_prompts - 1:
        raise ValueError(f"num_others={num_others}; of {num_prompts} prompts there are 1 to {num_prompts - 1} others")
    rows = np.arange(len(source))
    ranks = np.random.default_rng(seed).random((len(source), num_prompts))
    ranks[rows, source] = -1.0
    chosen = np.argpartition(ranks, num_others, axis=1)[:, : num_others + 1]
    wanted = np.zeros(ranks.shape, dtype=bool)
    wanted[rows[:, None], chosen] = True
    return wanted


@dataclass(frozen=True)
class Mixtures:
    """Mixtures of n reasonings. `log_mean` (n,): corrected log m_s; `correction` (n,): the jackknife's correction in
    it; `without` (n, c): change of log m_s if a prompt were removed from the mixture, scaled so that its mean over n
    estimates the mean over all pairs; 0 for pairs that were not scored."""

    log_mean: np.ndarray
    correction: np.ndarray
    without: np.ndarray


def mixtures(log_likelihood: np.ndarray, source: np.ndarray, weights: np.ndarray) -> Mixtures:
    """The mixtures of partly scored pairs. `log_likelihood`: (n, c) nats per sequence, NaN for a pair that was not
    scored, but never at a reasoning's own prompt; `weights`: (c,) with sum 1."""
    rows, num_columns = np.arange(len(source)), log_likelihood.shape[1]
    others = ~np.isnan(log_likelihood)
    others[rows, source] = False
    count, mass = others.sum(axis=1), (others * weights).sum(axis=1)
    grown = (1 - weights[source]) / mass
    terms = np.where(others, np.log(weights) + np.nan_to_num(log_likelihood) + np.log(grown)[:, None], -np.inf)
    own = np.log(weights[source]) + log_likelihood[rows, source]
    top = np.maximum(own, terms.max(axis=1))
    own_part, parts = np.exp(own - top), np.exp(terms - top[:, None])
    rest = parts.sum(axis=1)
    total = own_part + rest
    correction = _jackknife(own_part, parts, others, weights, mass) * (1 - count / (num_columns - 1))
    lost = np.minimum(parts / (total * grown)[:, None], 1 - 1e-12)
    without = np.where(others, grown[:, None] * (np.log1p(-lost) - np.log1p(-weights)), 0.0)
    return Mixtures(top + np.log(total) + correction, correction, without)


def information_each(log_likelihood: np.ndarray, source: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(n,) log-likelihood of each reasoning under its own prompt less the log of its mixture over all prompts, nats per
    sequence, whose mean is MI-Seq-Est; NaN for a reasoning without a finite pair beside its own. Arguments as
    `mixtures`, where `weights` need no sum 1 and any pair may be missing."""
    values = np.where(np.isfinite(log_likelihood), log_likelihood, np.nan)
    rows = np.arange(len(source))
    own, found = values[rows, source], np.full(len(source), np.nan)
    used = ~np.isnan(own) & ((~np.isnan(values)).sum(axis=1) > 1)
    if used.any():
        found[used] = own[used] - mixtures(values[used], source[used], weights / weights.sum()).log_mean
    return found


def _jackknife(
    own: np.ndarray, parts: np.ndarray, others: np.ndarray, weights: np.ndarray, mass: np.ndarray
) -> np.ndarray:
    """(n,) negative of the estimated bias of log(own + sum of parts): (|S| - 1) times the mean fall of the log when one
    prompt of S is removed and the others take over its mass; 0 if S has one prompt."""
    count, rest = others.sum(axis=1), parts.sum(axis=1)
    left = np.where(others & (count > 1)[:, None], mass[:, None] - weights, mass[:, None])
    remaining = np.maximum(rest[:, None] - parts, 0) * (mass[:, None] / left)
    falls = np.log(own + rest)[:, None] - np.log(own[:, None] + remaining)
    return np.where(count > 1, (count - 1) * np.where(others, falls, 0.0).sum(axis=1) / np.maximum(count, 1), 0.0)


def estimate(
    log_likelihood: np.ndarray,
    lengths: np.ndarray,
    source: np.ndarray,
    column_weights: np.ndarray | None = None,
    seed: Sequence[int] = (0,),
) -> BudgetMetrics:
    """MI-Est, MI-Seq-Est and the entropies of Table 1 (Eq. 1's normalisation) from the scored pairs.

    `log_likelihood`: (num_samples, num_columns) nats per sequence, NaN if not scored; `lengths`: (num_samples,) tokens,
    all above 0; `source`: (num_samples,) column of each sample's own prompt; columns are distinct prompts and
    `column_weights` their masses; `seed`: of the nulls' permutations. Raises ValueError if a reasoning was not scored
    under its own prompt, or under no other.
    """
    matrix, tokens = np.asarray(log_likelihood, np.float64), np.asarray(lengths, np.float64)
    scored = np.isfinite(matrix)
    own = matrix[np.arange(len(source)), source]
    if not np.isfinite(own).all() or scored.sum(axis=1).min() < 2:
        raise ValueError("every reasoning must be scored under its own prompt and under one other at least")
    weights = np.ones(matrix.shape[1]) if column_weights is None else np.asarray(column_weights, np.float64)
    shares = weights / weights.sum()
    found = mixtures(np.where(scored, matrix, np.nan), source, shares)
    one, matched, marginal = np.ones_like(tokens), own / tokens, found.log_mean / tokens
    values = {
        "mi_est": (matched - marginal, 1 / tokens),
        "mi_seq_est": (own - found.log_mean, one),
        "marginal_entropy": (-marginal, 1 / tokens),
        "conditional_entropy": (-matched, 0 * one),
    }
    metrics = {name: float(value.mean()) for name, (value, _) in values.items()}
    intervals = {name: _interval(value, scale, found, source) for name, (value, scale) in values.items()}
    return BudgetMetrics(
        **metrics,
        upper_bound=float(information_bound(shares, source).mean()),
        marginal_std=float(marginal.std()),
        intervals={name: interval for name, interval in intervals.items() if interval is not None},
        share=float(scored.mean()),
        retrieval_chance=float((1 / scored.sum(axis=1)).mean()),
        retrieval_accuracy=_hits(np.where(scored, matrix, -np.inf), own),
        nulls=_nulls(np.where(scored, matrix, np.nan), tokens, source, found.log_mean, seed),
    )


def _nulls(
    matrix: np.ndarray, lengths: np.ndarray, source: np.ndarray, log_mean: np.ndarray, seed: Sequence[int]
) -> dict[str, Null]:
    few = len(np.unique(source)) < MIN_PROMPTS
    return {} if few else candidate_nulls(matrix, lengths, source, log_mean, seed)


def candidate_nulls(
    log_likelihood: np.ndarray, lengths: np.ndarray, source: np.ndarray, log_mean: np.ndarray, seed: Sequence[int]
) -> dict[str, Null]:
    """Nulls of `retrieval_accuracy`, `mi_est` and `mi_seq_est` if a part of the pairs is scored, or all of them.

    In each of RESAMPLES random assignments, one of the prompts under which a reasoning was scored, drawn at random,
    counts as its own. If Z does not depend on X, each of them is equally likely to be its own. A prompt under which all
    reasonings are likely is the own prompt as often as any other in the design, but not in a random assignment: this
    widens the null and raises the p-value.

    Args:
        log_likelihood: (n, num_columns) nats per sequence, NaN for pairs that were not scored.
        lengths: (n,) tokens.
        source: (n,) column of each reasoning's own prompt.
        log_mean: (n,) log of each reasoning's mixture, nats; it is the same in every assignment.
        seed: of the assignments.
    """
    rows, scored = np.arange(len(source)), ~np.isnan(log_likelihood)
    candidates = np.where(scored, log_likelihood, -np.inf)
    best = candidates == candidates.max(axis=1, keepdims=True)
    credit = {
        "retrieval_accuracy": best / best.sum(axis=1, keepdims=True),
        "mi_est": (candidates - log_mean[:, None]) / lengths[:, None],
        "mi_seq_est": candidates - log_mean[:, None],
    }
    columns = np.argsort(~scored, axis=1, kind="stable")
    number = scored.sum(axis=1)
    picked = columns[rows, np.random.default_rng(seed).integers(number, size=(RESAMPLES, len(rows)))]
    found = {name: (values[rows, source].mean(), values[rows, picked].mean(axis=1)) for name, values in credit.items()}
    return {name: null_of(float(true), draws) for name, (true, draws) in found.items()}


def _hits(candidates: np.ndarray, own: np.ndarray) -> float:
    """Share of reasonings whose own prompt is the most likely of its candidates; a tie of n prompts counts 1/n."""
    best = (candidates > own[:, None]).sum(axis=1) == 0
    return float((best / (candidates == own[:, None]).sum(axis=1)).mean())


def _interval(values: np.ndarray, scale: np.ndarray, found: Mixtures, source: np.ndarray) -> Interval | None:
    """Interval of the mean of `values` (num_samples,), each of which falls by `scale` times the rise of log m_s."""
    num = found.without.shape[1]
    if len(np.unique(source)) < MIN_INTERVAL:
        return None
    column = found.without * scale[:, None]
    own = np.bincount(source, minlength=num)
    total, block = values.sum(), np.bincount(source, weights=values, minlength=num)
    left_out = (total - block - column.sum(axis=0)) / (len(values) - own)
    variance = (num - 1) / num * ((left_out - left_out.mean()) ** 2).sum()
    error = math.sqrt(float(variance + (found.correction * scale).mean() ** 2))
    reach = t_quantile((1 + LEVEL) / 2, num - 1) * error
    return Interval(float(values.mean() - reach), float(values.mean() + reach), error)
