"""The proxies at a part of the pairs: each reasoning under its own prompt and a random few of the others.

The mixture of Eq. 1 needs every reasoning under every prompt: with N prompts of K reasonings, N * K * N pairs. Under a
budget each reasoning s gets its own random subset S of the other prompts, so that errors of reasonings average out;
its own prompt is always scored (the matched term is exact, and is the mixture's largest where Z depends on X):

    m_s = w_own exp(L_s,own) + (1 - w_own) sum_(j in S) w_j exp(L_sj) / sum_(j in S) w_j

m_s is unbiased with equal weights, log m_s is low (Jensen). The correction is the jackknife's over S, scaled for
drawing without replacement (Quenouille 1956):

    log m_s + (1 - |S| / (N - 1)) (|S| - 1) (log m_s - mean_(j in S) log m_s without j)

With all pairs scored nothing is estimated and nothing is corrected. What is left of the bias is where one of many
others carries the mixture and S seldom holds it: rare twins of a prompt (tests/actors/diagnosis/test_budget.py has the
numbers).

Intervals are Student's t from the delete-one jackknife over prompts: a prompt leaves with its own reasonings, their
subsets' noise with them, and out of everybody's mixture, what that changes being estimated from the scored pairs. The
mean correction is added in quadrature: it is known no better than its own size.

Retrieval is among the scored prompts: chance is one over their number, so it is another figure than at all pairs. Pure
numpy; imports neither torch, Ray nor vLLM.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from actors.diagnosis.proxies import EmaState
from actors.diagnosis.uncertainty import LEVEL, MIN_INTERVAL, Interval, t_quantile

MIN_OTHERS = 2
"""Fewest other prompts of each reasoning: the jackknife leaves one out."""


@dataclass(frozen=True)
class BudgetFigures:
    """Nats a token, MI-Seq-Est nats a sequence. `intervals` by the same names, empty below 6 prompts; `share` of the
    pairs that were scored, (0, 1]; `num_candidates`: prompts that each reasoning was held against, its own included;
    `retrieval_accuracy`: among those, ties at random."""

    mi_est: float
    mi_seq_est: float
    marginal_entropy: float
    marginal_std: float
    conditional_entropy: float
    intervals: dict[str, Interval]
    share: float
    num_candidates: int
    retrieval_accuracy: float

    def metrics(self, ema: EmaState | None, epsilon: float) -> dict[str, float]:
        """Flat keys of the metric registry, scope left out; what needs all pairs (recall, p-values, nulls) is not among
        them. `ema` takes the marginals' std and is advanced in place."""
        smooth = self.marginal_std if ema is None else ema.update(self.marginal_std)
        names = ("mi_est", "mi_seq_est", "marginal_entropy", "conditional_entropy", "retrieval_accuracy")
        flat = {name: value for name, value in vars(self).items() if name in names}
        for name, found in self.intervals.items():
            flat |= {f"{name}_low": found.low, f"{name}_high": found.high}
        if "mi_seq_est" in self.intervals:
            flat["mi_seq_est_standard_error"] = self.intervals["mi_seq_est"].standard_error
        return flat | {
            "retrieval_chance": 1 / self.num_candidates,
            "mi_zscore": self.mi_est / (self.marginal_std + epsilon),
            "mi_zscore_ema": self.mi_est / (smooth + epsilon),
        }


def others_within(max_pairs: int, num_samples: int, num_prompts: int) -> int:
    """Other prompts for each reasoning so that num_samples * (1 + others) <= max_pairs, from MIN_OTHERS (whatever the
    budget) to all of them."""
    return min(num_prompts - 1, max(MIN_OTHERS, max_pairs // max(1, num_samples) - 1))


def draw_pairs(source: np.ndarray, num_prompts: int, num_others: int, seed: Sequence[int]) -> np.ndarray:
    """(num_samples, num_prompts) bool: each reasoning's own prompt, and `num_others` of the others at random.

    ValueError unless 1 <= num_others <= num_prompts - 1.
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
    """Of n reasonings: `log_mean` (n,) corrected log m_s; `correction` (n,) what the jackknife added to it; `without`
    (n, c) how much log m_s would change were a prompt left out of the mixture, scaled so that the mean over all n
    estimates that mean over all pairs; 0 where not scored."""

    log_mean: np.ndarray
    correction: np.ndarray
    without: np.ndarray


def mixtures(log_likelihood: np.ndarray, source: np.ndarray, weights: np.ndarray) -> Mixtures:
    """`log_likelihood`: (n, c) nats a sequence, NaN where a pair was not scored, never at a reasoning's own prompt;
    `weights`: (c,) summing to 1."""
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


def _jackknife(
    own: np.ndarray, parts: np.ndarray, others: np.ndarray, weights: np.ndarray, mass: np.ndarray
) -> np.ndarray:
    """(n,) estimated bias of log(own + sum of parts), sign turned: (|S| - 1) times the mean fall of the log as each of
    S is left out, the others taking over its mass; 0 where S holds one."""
    count, rest = others.sum(axis=1), parts.sum(axis=1)
    left = np.where(others & (count > 1)[:, None], mass[:, None] - weights, mass[:, None])
    remaining = np.maximum(rest[:, None] - parts, 0) * (mass[:, None] / left)
    falls = np.log(own + rest)[:, None] - np.log(own[:, None] + remaining)
    return np.where(count > 1, (count - 1) * np.where(others, falls, 0.0).sum(axis=1) / np.maximum(count, 1), 0.0)


def estimate(
    log_likelihood: np.ndarray, lengths: np.ndarray, source: np.ndarray, column_weights: np.ndarray | None = None
) -> BudgetFigures:
    """MI-Est, MI-Seq-Est and the entropies of Table 1 (Eq. 1's normalisation) from the scored pairs.

    `log_likelihood`: (num_samples, num_columns) nats a sequence, NaN where not scored; `lengths`: (num_samples,)
    tokens, all above 0; `source`: (num_samples,) column of each sample's own prompt; columns are distinct prompts,
    `column_weights` their masses. ValueError where a matched pair was not scored, or a row has no other pair.
    """
    matrix, tokens = np.asarray(log_likelihood, np.float64), np.asarray(lengths, np.float64)
    scored = np.isfinite(matrix)
    own = matrix[np.arange(len(source)), source]
    if not np.isfinite(own).all() or scored.sum(axis=1).min() < 2:
        raise ValueError("every reasoning must be scored under its own prompt and under one other at least")
    weights = np.ones(matrix.shape[1]) if column_weights is None else np.asarray(column_weights, np.float64)
    found = mixtures(np.where(scored, matrix, np.nan), source, weights / weights.sum())
    one, matched, marginal = np.ones_like(tokens), own / tokens, found.log_mean / tokens
    values = {
        "mi_est": (matched - marginal, 1 / tokens),
        "mi_seq_est": (own - found.log_mean, one),
        "marginal_entropy": (-marginal, 1 / tokens),
        "conditional_entropy": (-matched, 0 * one),
    }
    figures = {name: float(value.mean()) for name, (value, _) in values.items()}
    intervals = {name: _interval(value, scale, found, source) for name, (value, scale) in values.items()}
    return BudgetFigures(
        **figures,
        marginal_std=float(marginal.std()),
        intervals={name: interval for name, interval in intervals.items() if interval is not None},
        share=float(scored.mean()),
        num_candidates=int(scored.sum(axis=1).min()),
        retrieval_accuracy=_hits(np.where(scored, matrix, -np.inf), own),
    )


def _hits(candidates: np.ndarray, own: np.ndarray) -> float:
    """Share of reasonings whose own prompt is the likeliest of its candidates, a tie counting one over its size."""
    best = (candidates > own[:, None]).sum(axis=1) == 0
    return float((best / (candidates == own[:, None]).sum(axis=1)).mean())


def _interval(values: np.ndarray, scale: np.ndarray, found: Mixtures, source: np.ndarray) -> Interval | None:
    """Of the mean of `values` (num_samples,), which fall by `scale` times what log m_s rises."""
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
