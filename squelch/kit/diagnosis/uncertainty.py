"""Uncertainty of the proxies of one score matrix: intervals, and null distributions under which Z is independent of X.

Pure numpy in float64; imports neither torch, Ray nor vLLM.

Interval: a bootstrap over prompts. Prompts with all their reasonings are the independent units. Each prompt has two
roles: it is the source of its reasonings, and it is a column of every mixture. Resampling columns would put copies of a
reasoning's own prompt into its mixture and bias every estimate downwards. The bootstrap therefore resamples the
delete-one influence values (Efron and Tibshirani 1993, section 11.6), which cover both roles without copies:

    u_i = (N - 1) (mean_j T_(-j) - T_(-i)),     T_b = T + mean_i c_i u_i,     c ~ Multinomial(N, 1/N)

The percentiles are expanded to those of Student's t with N - 1 degrees of freedom and variance N / (N - 1) (Hesterberg
2015, section 4.2): plain percentiles are too narrow below about 30 prompts. The interval covers the metric's
expectation over draws of N prompts and their reasonings. For MI this expectation lies below I(X;Z) by the bias of the
mixture (docs/research/known-truth.md), so the interval does not cover I(X;Z) itself.

Null: if reasoning does not depend on its input, the assignment of blocks of reasonings to prompts is exchangeable. The
labels of the distinct prompts are permuted; the mixture stays the same. The p-value is the share of permutations that
reach the value of the true labels, with the true labels counted as one of them: of all permutations where there are no
more than `RESAMPLES` (up to 6 prompts), so that it is exact, else of as many random ones. `point_95` is the value that
5% of the permutations reach.

Invariants:

- Below `MIN_PROMPTS` distinct prompts there is neither p-value nor interval: the smallest possible p-value is 1/N!, and
  1/3! > 0.05. Below `MIN_INTERVAL` there is no interval: at 4 prompts its coverage was as low as 60% of the nominal
  coverage (docs/research/known-truth.md).
- The same scores and seed give the same results; the cost is O(samples x prompts), plus `RESAMPLES` x prompts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, TypeVar

import numpy as np

from squelch.kit.diagnosis.proxies import RECALL_AT, Compat, Proxies, Scores, by_prompt, log_mixture, prompt_mass

LEVEL = 0.95
Z95 = NormalDist().inv_cdf((1 + LEVEL) / 2)
"""Half width of a 95% normal interval, in standard errors."""
RESAMPLES = 999
"""Number of resamples and of random permutations; the true labels are added, so p-values are multiples of 1/1000."""
MIN_PROMPTS = 4
MOST_RATIO = 1e6
"""An interval that is wider than wanted by more than this is not extrapolated further."""
MIN_INTERVAL = 6
SHARES = ("retrieval_accuracy", *(f"recall@{k}" for k in RECALL_AT))
TESTED = ("retrieval_accuracy", "mi_est", "mi_seq_est")
"""Proxies with a null; the z-scores are MI-Est on another scale, and entropies do not test dependence."""
ESTIMATED = (*SHARES, "mi_est", "mi_seq_est", "mi_zscore", "mi_zscore_ema", "conditional_entropy", "marginal_entropy")
"""Proxies with an interval."""
Value = TypeVar("Value")


@dataclass(frozen=True)
class Interval:
    """95% interval and standard error over prompts, in the proxy's unit."""

    low: float
    high: float
    standard_error: float

    @property
    def half_width(self) -> float:
        """Half of the interval's width, in the proxy's unit."""
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class Null:
    """Null of a proxy: the one-sided p-value in (0, 1], and the null's 95% point in the proxy's unit."""

    p_value: float
    point_95: float


class Named(dict[str, Value]):
    """Values by name. The KeyError of a name that has none says why."""

    def __init__(self, values: Mapping[str, Value], why_not: str = "") -> None:
        super().__init__(values)
        self._why_not = why_not

    def __missing__(self, name: str) -> Value:
        raise KeyError(f"{name}: {self._why_not or 'there are ' + ', '.join(self)}")


@dataclass(frozen=True)
class Uncertainty:
    """Uncertainty of one score matrix: `intervals` by the names in ESTIMATED, `nulls` by the names in TESTED. If too
    few prompts were scored, the dict is empty and `why_not`, as its KeyError, gives the reason."""

    num_prompts: int
    intervals: dict[str, Interval]
    nulls: dict[str, Null]
    why_not: str | None = None

    def metrics(self) -> dict[str, float]:
        """Flat keys of the metric registry, without the scope; unknown values are NaN."""
        flat: dict[str, float] = {}
        for name in ESTIMATED:
            found = self.intervals.get(name)
            flat[f"{name}_low"], flat[f"{name}_high"] = (found.low, found.high) if found else (math.nan, math.nan)
        sequence = self.intervals.get("mi_seq_est")
        flat["mi_seq_est_standard_error"] = sequence.standard_error if sequence else math.nan
        for name in TESTED:
            null = self.nulls.get(name)
            flat[f"{name}_p_value"], flat[f"{name}_null_95"] = (
                (null.p_value, null.point_95) if null else (math.nan, math.nan)
            )
        return flat

    def prompts_needed(self, name: str, half_width: float) -> int | None:
        """Distinct prompts needed for an interval of `name` of at most +-`half_width`, extrapolated from this
        interval's width, which scales as 1/sqrt(N), up to `MOST_RATIO`; None without a finite
        interval. ValueError unless half_width > 0."""
        if not half_width > 0:
            raise ValueError(f"half_width={half_width} must be above 0, in the unit of {name}")
        found = self.intervals.get(name)
        if found is None or not math.isfinite(found.half_width):
            return None
        ratio = min(found.half_width / half_width, MOST_RATIO)
        return max(MIN_INTERVAL, math.ceil(self.num_prompts * ratio**2))


def uncertainty(
    scores: Scores, report: Proxies, *, compat: Compat = "paper", epsilon: float = 1e-3, seed: Sequence[int] = (0,)
) -> Uncertainty:
    """Intervals and nulls of `report`, the proxies of the same `scores`."""
    num = scores.num_prompts
    sources = len(np.unique(scores.prompt[scores.source])) if len(scores.source) else 0
    why = f"{sources} distinct prompts with a usable reasoning; p-values need {MIN_PROMPTS}, intervals {MIN_INTERVAL}"
    if sources < MIN_PROMPTS:
        return Uncertainty(num, Named({}, why), Named({}, why), why)
    rng = np.random.default_rng(seed)
    nulls = permuted(scores, compat, rng)
    if sources < MIN_INTERVAL:
        return Uncertainty(num, Named({}, why), Named(nulls), why)
    return Uncertainty(num, Named(_intervals(scores, report, compat, epsilon, rng)), Named(nulls))


def _intervals(
    scores: Scores, report: Proxies, compat: Compat, epsilon: float, rng: np.random.Generator
) -> dict[str, Interval]:
    """Intervals by the names in ESTIMATED."""
    num = scores.num_prompts
    counts = rng.multinomial(num, np.full(num, 1 / num), size=RESAMPLES)
    metrics: dict[str, Any] = report.as_dict() | {f"recall@{k}": value for k, value in report.recall.items()}
    left_out = delete_one(scores, compat, epsilon)
    intervals = {name: _interval(metrics[name], values, counts) for name, values in left_out.items()}
    intervals = {name: _bounded(name, found, metrics[name], report) for name, found in intervals.items()}
    return intervals | {"mi_zscore_ema": _smoothed(report, intervals)}


def _smoothed(report: Proxies, intervals: dict[str, Interval]) -> Interval:
    """Interval of MI-ZScore-EMA: MI-Est's interval divided by the average, in which this batch's weight is 1 - alpha.
    At the first scorer step the average is this batch's std, so the interval is that of MI-ZScore."""
    if report.mi_zscore_ema == report.mi_zscore:
        return intervals["mi_zscore"]
    smoothed, mi = report.mi_zscore_ema, intervals["mi_est"]
    scale = smoothed / report.mi_est if smoothed is not None and report.mi_est else 0.0
    return Interval(mi.low * scale, mi.high * scale, mi.standard_error * scale)


def _interval(value: float, left_out: np.ndarray, counts: np.ndarray) -> Interval:
    """Expanded-percentile interval from the delete-one values, (num_prompts,)."""
    num = len(left_out)
    influence = (num - 1) * (left_out.mean() - left_out)
    draws = value + counts @ influence / num
    tail = NormalDist().cdf(-math.sqrt(num / (num - 1)) * t_quantile((1 + LEVEL) / 2, num - 1))
    low, high = np.quantile(draws, [tail, 1 - tail])
    return Interval(float(low), float(high), float(np.sqrt((influence**2).sum() / (num * (num - 1)))))


def _bounded(name: str, found: Interval, value: float, report: Proxies) -> Interval:
    """Clips an interval to the proxy's range. A share of exactly 0 or 1 gets Wilson's interval with the prompts as
    trials, unless it is 1 by construction (Recall@k with k at least the number of prompts)."""
    if name in SHARES:
        certain = name != SHARES[0] and report.recall_chance[int(name.removeprefix("recall@"))] == 1.0
        if value in (0.0, 1.0) and not certain:
            trials = report.num_prompts
            found = Interval(*wilson_interval(round(value) * trials, trials), found.standard_error)
        return Interval(max(0.0, found.low), min(1.0, found.high), found.standard_error)
    # The expectation over draws of N prompts is at most log N. The bounds of this draw depend on its multiplicities and
    # lengths: clipping at them would make a saturated estimate's interval too narrow.
    top = math.log(report.num_prompts) if name == "mi_seq_est" else math.inf
    bottom = 0.0 if name.endswith("entropy") else -math.inf
    return Interval(max(bottom, found.low), max(value, min(top, found.high)), found.standard_error)


def wilson_interval(successes: float, trials: float) -> tuple[float, float]:
    """95% score interval of a binomial proportion (Wilson, 1927); (0, 1) without trials."""
    if trials == 0:
        return 0.0, 1.0
    share, z2 = successes / trials, Z95**2
    centre = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z95 / (1 + z2 / trials) * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2))
    low, high = max(0.0, centre - half), min(1.0, centre + half)
    return (low if successes > 0 else 0.0), (high if successes < trials else 1.0)


def fisher_interval(correlation: float, num: int) -> tuple[float, float]:
    """95% interval of a correlation of `num` > 3 pairs (Fisher's z, 1921); one of 0.999 or more counts as 0.999."""
    z, half = math.atanh(min(0.999, max(-0.999, correlation))), Z95 / math.sqrt(num - 3)
    return math.tanh(z - half), math.tanh(z + half)


def paired_interval(differences: np.ndarray) -> tuple[float, float, float]:
    """(mean, low, high) of paired differences of shares, (num_pairs,) each in [-1, 1], with a 95% normal interval.
    Where all are equal, their spread carries no information: Wilson's bound of the share of other pairs is the half
    width then."""
    num, mean = len(differences), float(differences.mean())
    half = Z95 * float(differences.std(ddof=1)) / math.sqrt(num) if num > 1 else math.inf
    if half == 0:
        _, half = wilson_interval(0, num)
        return mean, max(-1.0, mean - half), min(1.0, mean + half)
    return mean, mean - half, mean + half


def t_quantile(probability: float, degrees: int) -> float:
    """Quantile of Student's t: in closed form for 1 and 2 degrees of freedom, where the expansion is inaccurate; else
    by the expansion around the normal quantile (Abramowitz and Stegun 26.7.5), with an error within 1%."""
    if degrees == 1:
        return math.tan((probability - 0.5) * math.pi)
    if degrees == 2:
        return (2 * probability - 1) * math.sqrt(2 / (4 * probability * (1 - probability)))
    z, v = NormalDist().inv_cdf(probability), degrees
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / v**power for power, term in enumerate(terms, start=1))


def delete_one(scores: Scores, compat: Compat, epsilon: float) -> dict[str, np.ndarray]:
    """Delete-one values by proxy, (num_prompts,): its value without one prompt, the prompt's reasonings and its
    column."""
    lengths, block = scores.lengths[:, None], scores.prompt[scores.source]
    own = scores.likelihood[np.arange(len(block)), scores.source][:, None]
    mixture = log_mixture_without(scores, scores.likelihood)
    marginal = mixture / lengths
    if compat == "ragen":
        marginal = log_mixture_without(scores, scores.likelihood / lengths)
    kept = np.ones((len(block), scores.num_prompts), dtype=bool)
    kept[np.arange(len(block)), block] = False

    def mean(values: np.ndarray) -> np.ndarray:
        return (values * kept).sum(axis=0) / kept.sum(axis=0)

    matched, centre = own / lengths, marginal.mean()
    mi = mean(matched - marginal)
    variance = mean((marginal - centre) ** 2) - mean(marginal - centre) ** 2
    found = {
        "mi_est": mi,
        "mi_seq_est": mean(own - mixture),
        "mi_zscore": mi / (np.sqrt(np.maximum(variance, 0)) + epsilon),
        "conditional_entropy": -mean(np.broadcast_to(matched, kept.shape)),
        "marginal_entropy": -mean(marginal),
    }
    hits = hits_without(scores, (1, *RECALL_AT))
    return found | {name: mean(values) for name, values in zip(SHARES, hits, strict=True)}


def log_mixture_without(scores: Scores, likelihood: np.ndarray) -> np.ndarray:
    """(n, num_prompts): log-likelihood of the mixture without one prompt's columns, numerically stable."""
    terms = likelihood + np.log(scores.weights)
    joint = np.full((len(terms), scores.num_prompts), -np.inf)
    for column, prompt in enumerate(scores.prompt):
        np.logaddexp(joint[:, prompt], terms[:, column], out=joint[:, prompt])
    nothing = np.full((len(terms), 1), -np.inf)
    before = np.hstack([nothing, np.logaddexp.accumulate(joint, axis=1)[:, :-1]])
    after = np.hstack([np.logaddexp.accumulate(joint[:, ::-1], axis=1)[:, ::-1][:, 1:], nothing])
    return np.logaddexp(before, after) - np.log1p(-prompt_mass(scores))


def hits_without(scores: Scores, ks: Sequence[int]) -> list[np.ndarray]:
    """For each k (n, num_prompts): `proxies.expected_hits` without one prompt among the candidates. Entries where that
    prompt is the sample's own are meaningless."""
    candidates, block = by_prompt(scores), scores.prompt[scores.source]
    own = candidates[np.arange(len(candidates)), block][:, None]
    better, tied = candidates > own, candidates == own
    num_better = better.sum(axis=1, keepdims=True) - better
    num_tied = np.maximum(tied.sum(axis=1, keepdims=True) - tied, 1)
    return [np.clip((k - num_better) / num_tied, 0.0, 1.0) for k in ks]


def permuted(scores: Scores, compat: Compat, rng: np.random.Generator) -> dict[str, Null]:
    """The nulls: blocks of reasonings are assigned to prompts in all other ways, or in RESAMPLES random ones."""
    candidates, block = by_prompt(scores), scores.prompt[scores.source]
    best = candidates == candidates.max(axis=1, keepdims=True)
    mixture, lengths = log_mixture(scores.likelihood, scores.weights), scores.lengths
    marginal = mixture / lengths
    if compat == "ragen":
        marginal = log_mixture(scores.likelihood / lengths[:, None], scores.weights)
    credit = {
        "retrieval_accuracy": best / best.sum(axis=1, keepdims=True),
        "mi_est": candidates / lengths[:, None] - marginal[:, None],
        "mi_seq_est": candidates - mixture[:, None],
    }
    num = scores.num_prompts
    deals = _deals(num, rng)
    return {name: _null(_by_block(values, block, num), deals, len(block)) for name, values in credit.items()}


def _deals(num_prompts: int, rng: np.random.Generator) -> np.ndarray:
    """(n, num_prompts): permutations of the prompts. Random ones of few prompts would be the true one now and then."""
    if math.factorial(num_prompts) <= RESAMPLES:
        return np.array(list(itertools.permutations(range(num_prompts)))[1:])
    return rng.permuted(np.tile(np.arange(num_prompts), (RESAMPLES, 1)), axis=1)


def _by_block(values: np.ndarray, block: np.ndarray, num_prompts: int) -> np.ndarray:
    """(num_prompts, num_prompts): at [b, j] the summed `values` of prompt b's reasonings if j were their own prompt."""
    sums = np.zeros((num_prompts, num_prompts))
    np.add.at(sums, block, values)
    return sums


def _null(sums: np.ndarray, deals: np.ndarray, num_samples: int) -> Null:
    """sums: (num_prompts, num_prompts), see `_by_block`; deals: (n, num_prompts)."""
    return null_of(np.trace(sums) / num_samples, sums[np.arange(len(sums)), deals].sum(axis=1) / num_samples)


def null_of(true: float, draws: np.ndarray) -> Null:
    """The null from the values `draws` of random assignments and the `true` value, which is counted as one of them."""
    as_good = int((draws >= true - 1e-9 * (1 + abs(true))).sum())
    return Null((1 + as_good) / (1 + len(draws)), float(np.quantile(np.append(draws, true), LEVEL)))
