"""Evidence that reasonings depend on their prompts, from a model that did not sample them: for policies whose weights
one does not have.

Let x_1, …, x_K be the distinct prompts, U uniform over them, and Z a reasoning that the policy sampled under x_U. For
any function f of a prompt and a reasoning (Barber and Agakov 2003)

    I(U;Z) >= log K + E[f(x_U, Z) - log sum_j exp f(x_j, Z)]

with equality where exp f(x_j, Z) is proportional to p(Z|x_j). Here f comes from log q(Z|x), nats summed over the tokens
of Z, of another language model, the *scorer*:

    exp f(x_j, Z) = (1 - DOUBT) exp(scale log q(Z|x_j)) / sum_i exp(scale log q(Z|x_i)) + DOUBT / K

Scorers are too sure, so that a scale below 1 tells more; without a doubt one confident mistake would decide the mean.

    retrieval   over all K prompts: how often log q is largest at the own prompt
    bound       the right side over half of the prompts, drawn at random, with the scale at which it is largest over the
                other half

**The test of retrieval.** Where reasonings do not depend on their prompts, all ways of assigning groups of reasonings
to prompts that have equally many are equally likely. The p-value is the share of such ways, drawn at random, that
retrieve as much or more. The test is exact: of such files at most one in twenty has p <= 0.05, whichever prompts the
scorer prefers, and also where the reasonings of a prompt resemble each other, as those from a cache do.

**Conditions.** Held here: the own prompt is in the sum; f is a sum over tokens, never a mean or a z-score; the scale
was fitted on other prompts' reasonings; each prompt has the same weight, however many reasonings it has. What scores
cannot show is asked of the caller (`questions`). Later turns are no samples: their prompts hold what the same rollout
wrote, so that rows would not be independent.

A significant result is evidence, and one that is not is none, because another scorer or more prompts may show the
dependence. So no regime is named, only `DEPENDS` or `NOT_SHOWN`.

Pure numpy in float64; the same scores and seed give the same result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from squelch.kit.diagnosis.proxies import Scores
from squelch.kit.diagnosis.regime import P_VALUE
from squelch.kit.diagnosis.uncertainty import LEVEL, RESAMPLES, Interval, Null, null_of, t_quantile

DEPENDS, NOT_SHOWN = "depends on its prompt", "not shown under this scorer"
SCALES = 2.0 ** np.arange(-12, 3)
"""Scales that are tried. The longer the reasonings, the surer is a scorer, and the smaller its best scale."""
DOUBT = 0.05
FEWEST = 4
"""Fewest prompts of a half."""


@dataclass(frozen=True)
class Bound:
    """The lower bound of I(U;Z), nats per reasoning, with U uniform over `prompts`, indices of the prompts that `scale`
    was not fitted on. `interval`: 95%, over the sampling of reasonings; `ceiling`: the largest possible value, log K
    less the scorer's doubt."""

    value: float
    interval: Interval
    ceiling: float
    scale: float
    prompts: np.ndarray


@dataclass(frozen=True)
class Evidence:
    """What a scorer shows. `retrieval_accuracy`: a mean over prompts, [0, 1], a tie of n prompts counts 1/n; `null`: of
    its exact test; `bound`: None with fewer than 2 * `FEWEST` prompts; `excluded`: number of reasonings by reason."""

    num_prompts: int
    num_samples: int
    excluded: dict[str, int]
    retrieval_accuracy: float
    null: Null
    bound: Bound | None

    @property
    def retrieval_chance(self) -> float:
        """1 / number of prompts."""
        return 1 / self.num_prompts

    @property
    def verdict(self) -> str:
        """`DEPENDS` if retrieval is significant, else `NOT_SHOWN`."""
        return DEPENDS if self.null.p_value <= P_VALUE else NOT_SHOWN

    def metrics(self) -> dict[str, float]:
        """Flat keys; NaN for those of an unknown bound."""
        bound = self.bound
        low, high = (bound.interval.low, bound.interval.high) if bound else (math.nan, math.nan)
        return {
            "num_prompts": float(self.num_prompts),
            "num_samples": float(self.num_samples),
            "retrieval_accuracy": self.retrieval_accuracy,
            "retrieval_chance": self.retrieval_chance,
            "retrieval_accuracy_p_value": self.null.p_value,
            "retrieval_accuracy_null_95": self.null.point_95,
            "bound": bound.value if bound else math.nan,
            "bound_low": low,
            "bound_high": high,
            "bound_ceiling": bound.ceiling if bound else math.nan,
            "bound_scale": bound.scale if bound else math.nan,
        }


def evidence_of(scores: Scores, seed: int = 0) -> Evidence:
    """The evidence in the scores of distinct prompts. `seed`: of the permutations and of the halves. ValueError unless
    two prompts have a usable reasoning."""
    columns, own = np.unique(scores.source, return_inverse=True)
    if len(columns) < 2:
        raise ValueError(f"{len(columns)} prompts have a usable reasoning; a comparison needs 2")
    matrix = scores.likelihood[:, columns]
    best = matrix == matrix.max(axis=1, keepdims=True)
    credit = _means(best / best.sum(axis=1, keepdims=True), own)
    deals = _deals(np.bincount(own), np.random.default_rng((seed, 0)))
    accuracy = float(np.trace(credit) / len(credit))
    bound = bound_of(matrix, own, np.random.default_rng((seed, 1)))
    return Evidence(
        num_prompts=len(columns),
        num_samples=len(own),
        excluded=scores.excluded,
        retrieval_accuracy=accuracy,
        null=null_of(accuracy, credit[np.arange(len(credit)), deals].mean(axis=1)),
        bound=None if bound is None else replace(bound, prompts=columns[bound.prompts]),
    )


def _means(values: np.ndarray, own: np.ndarray) -> np.ndarray:
    """(n, k) -> (num_prompts, k): the means over each prompt's reasonings; `own`: (n,) prompt of each."""
    sums = np.zeros((own.max() + 1, values.shape[1]))
    np.add.at(sums, own, values)
    return sums / np.bincount(own)[:, None]


def _deals(counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(RESAMPLES, num_prompts): permutations of the prompts among those that have equally many reasonings."""
    deals = np.tile(np.arange(len(counts)), (RESAMPLES, 1))
    for count in np.unique(counts):
        alike = np.flatnonzero(counts == count)
        deals[:, alike] = rng.permuted(deals[:, alike], axis=1)
    return deals


def bound_of(matrix: np.ndarray, own: np.ndarray, rng: np.random.Generator) -> Bound | None:
    """The bound, with halves drawn by `rng`; arguments as of `gains`. None with too few prompts."""
    num = matrix.shape[1]
    if num < 2 * FEWEST:
        return None
    order = rng.permutation(num)
    scale = best_scale([_among(matrix, own, np.sort(order[: num // 2]))])
    held = np.sort(order[num // 2 :])
    return bound_with(*_among(matrix, own, held), scale, held)


def _among(matrix: np.ndarray, own: np.ndarray, prompts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The reasonings of these prompts, among these prompts alone; `prompts`: ascending."""
    rows = np.isin(own, prompts)
    return matrix[np.ix_(rows, prompts)], np.searchsorted(prompts, own[rows])


def best_scale(files: Sequence[tuple[np.ndarray, np.ndarray]]) -> float:
    """The scale at which the bound of these `files`, each (matrix, own), is largest on average."""
    return max(SCALES.tolist(), key=lambda scale: math.fsum(gains(*one, scale).mean() for one in files))


def gains(matrix: np.ndarray, own: np.ndarray, scale: float) -> np.ndarray:
    """(num_prompts,): log K + f(own) - log sum_j exp f(j), nats, the mean over each prompt's reasonings. `matrix`: (n,
    num_prompts), log q; `own`: (n,), the prompt of each reasoning; every prompt has one."""
    likelihood = np.exp(scale * (matrix - matrix.max(axis=1, keepdims=True)))
    share = likelihood[np.arange(len(own)), own] / likelihood.sum(axis=1)
    gain = np.log((1 - DOUBT) * matrix.shape[1] * share + DOUBT)
    return np.bincount(own, weights=gain) / np.bincount(own)


def bound_with(matrix: np.ndarray, own: np.ndarray, scale: float, prompts: np.ndarray) -> Bound:
    """The bound over all of these prompts with a scale that was fitted on other reasonings; arguments as of `gains`.

    The interval is Student's t over prompts. These are fixed, so that it is too wide by the spread between them. It
    counts one more reasoning, of which the scorer can tell nothing: those that it confuses may be among those that were
    not sampled.
    """
    gain, num = gains(matrix, own, scale), matrix.shape[1]
    weights = np.append(np.ones(num), num / len(own))
    terms, total = np.append(gain, 0.0), float(weights.sum())
    mean = float(weights @ terms) / total
    error = math.sqrt(float(weights @ (terms - mean) ** 2) / (total - 1) / total)
    reach = t_quantile((1 + LEVEL) / 2, num - 1) * error
    value, ceiling = float(gain.mean()), math.log((1 - DOUBT) * num + DOUBT)
    return Bound(value, Interval(mean - reach, min(ceiling, max(value, mean + reach)), error), ceiling, scale, prompts)
