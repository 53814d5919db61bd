"""The fixed probe: how much the reasoning tells about its prompt, measured on the same tasks at every evaluation.

The proxies of Table 1 (`kit.diagnosis.proxies`) are measured on the few prompts of a step, which change with the
step. The probe has N fixed validation tasks with K reasonings each, sampled with fixed request seeds by one
policy version. Let X be uniform over the N tasks and L[i, k, j] = log q(Z_ik | X_j), nats:

    d_ik = L_iki - log(1/N sum_j exp L_ikj)            MI   = mean over i of the mean over k of d_ik
    e_ik = L_iki - log(1/(N-1) sum_(j != i) exp L_ikj) MI-  = the same of e_ik ("leave own out")

MI is unbiased for I(X; Z) of this X if all pairs are scored, and never above the entropy of the tasks' prompts (log N
if all differ). Of the distribution that the tasks were drawn from, MI is a lower bound in expectation and the
leave-own-out form an upper bound (van den Oord et al. 2018; Poole et al. 2019, section 2). The tasks are fixed, so that
only the sampling of reasonings is random:

    SE^2 = 1/N^2 sum_i s_i^2 / K_i,   s_i^2 the sample variance of d_ik over k

Intervals are Student's t with Welch and Satterthwaite's degrees of freedom. A change between two evaluations is paired
by task: the mean of the differences of the tasks' means, over the tasks that both evaluations have.

Invariants:

- Equal prompts are one column with their mass; `leave own out` leaves out all of that mass.
- Under a budget of pairs the mixtures are those of `kit.diagnosis.pair_budget`, corrected for their bias. The mixture
  without the own prompt is not corrected: its logarithm is biased downwards, so that MI- stays an upper bound.
- A task without a usable reasoning stays in the mixtures and is left out of the means.
- A task with one usable reasoning contributes the mean variance of the others to SE^2.

Pure numpy in float64; imports neither torch, Ray nor vLLM.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from squelch.kit.diagnosis.pair_budget import candidate_nulls, mixtures
from squelch.kit.diagnosis.proxies import information_bound
from squelch.kit.diagnosis.uncertainty import LEVEL, Interval, Null, t_quantile

SATURATED_NATS = 0.25
"""An estimate closer than this to its ceiling shows that there are too few prompts to measure the MI."""
MIN_TASKS = 4
"""Fewest tasks with usable reasonings for a null: as `kit.diagnosis.uncertainty.MIN_PROMPTS`."""


def saturated(mi: float, ceiling: float) -> bool:
    """Whether an estimate, nats per sequence, is within SATURATED_NATS of its ceiling, the entropy of the prompts."""
    return ceiling - mi < SATURATED_NATS


@dataclass(frozen=True)
class TaskMeans:
    """Means of a metric by task, nats. `mean`, `variance` (of the mean): (num_tasks,), NaN for a task without a usable
    reasoning; `count`: (num_tasks,) usable reasonings; `degrees`: degrees of freedom of the interval of `value`; None
    estimates them from the variances by the formula of Welch and Satterthwaite."""

    mean: np.ndarray
    variance: np.ndarray
    count: np.ndarray
    degrees: int | None = None

    @property
    def value(self) -> float:
        """The mean over the tasks that have a usable reasoning."""
        return float(np.nanmean(self.mean))

    def interval(self) -> Interval | None:
        """The 95% interval of `value`; None if no task has two usable reasonings, unless the variance is that between
        tasks (`degrees`)."""
        return _interval(self.value, self.variance, self.count, degrees=self.degrees)


@dataclass(frozen=True)
class ProbeEvaluation:
    """One evaluation of the probe. `tasks`: names of the tasks (num_tasks,); `mi`, `upper`: MI and its leave-own-out
    form by task, nats per sequence; `ceiling`: the largest possible MI, over the tasks with a usable reasoning; `null`:
    of MI, None below MIN_TASKS; `conditional_entropy`: H(Z|X), nats per token; `share`: share of the pairs that were
    scored, (0, 1]."""

    tasks: tuple[str, ...]
    mi: TaskMeans
    upper: TaskMeans
    ceiling: float
    null: Null | None
    conditional_entropy: float
    share: float

    def metrics(self) -> dict[str, float]:
        """Flat keys below `probe/`; unknown values are NaN."""
        flat = {"mi": self.mi.value, "mi_upper": self.upper.value, "ceiling": self.ceiling}
        flat |= bounds_of("mi", self.mi.interval()) | bounds_of("mi_upper", self.upper.interval())
        flat["saturated"] = float(saturated(self.mi.value, self.ceiling))
        flat["mi_p_value"] = self.null.p_value if self.null else math.nan
        flat["mi_null_95"] = self.null.point_95 if self.null else math.nan
        flat |= {"conditional_entropy": self.conditional_entropy, "pairs_ratio": self.share}
        return flat | {"tasks": float((self.mi.count > 0).sum()), "samples": float(self.mi.count.sum())}

    def change_since(self, earlier: Mapping[str, Any]) -> dict[str, float]:
        """`mi_change` with its 95% interval since an earlier evaluation (its `state`), over the tasks of both; NaN
        without such a task."""
        columns = zip(earlier["mean"], earlier["variance"], earlier["count"], strict=True)
        before = dict(zip(earlier["tasks"], columns, strict=True))
        now = dict(zip(self.tasks, zip(self.mi.mean, self.mi.variance, self.mi.count, strict=True), strict=True))
        both = [task for task in self.tasks if task in before and before[task][2] > 0 and now[task][2] > 0]
        if not both:
            return {"mi_change": math.nan, **bounds_of("mi_change", None)}
        pairs = np.array([(*before[task], *now[task]) for task in both], dtype=np.float64).T
        change = float((pairs[3] - pairs[0]).mean())
        variance, count = np.concatenate([pairs[1], pairs[4]]), np.concatenate([pairs[2], pairs[5]])
        return {"mi_change": change, **bounds_of("mi_change", _interval(change, variance, count, len(both)))}

    def state(self) -> dict[str, Any]:
        """The part of this evaluation that `change_since` needs; plain JSON, None for NaN."""
        lists = {"mean": self.mi.mean, "variance": self.mi.variance}
        plain = {name: [None if math.isnan(x) else float(x) for x in values] for name, values in lists.items()}
        return {"tasks": list(self.tasks), **plain, "count": self.mi.count.astype(int).tolist()}


def read_probe(
    log_likelihood: np.ndarray,
    lengths: np.ndarray,
    source: np.ndarray,
    task: np.ndarray,
    tasks: Sequence[str],
    weights: np.ndarray,
    seed: Sequence[int] = (0,),
    nulls: bool = True,
) -> ProbeEvaluation:
    """Computes an evaluation from n usable reasonings.

    Args:
        log_likelihood: (n, num_columns) nats per sequence, NaN for pairs that were not scored, never at a reasoning's
            own prompt; columns are the distinct prompts.
        lengths: (n,) tokens, all above 0.
        source: (n,) column of each reasoning's own prompt.
        task: (n,) index of each reasoning's task in `tasks`.
        weights: (num_columns,) number of tasks with that prompt; their sum is N.
        seed: of the null's permutations.
        nulls: whether to compute a null, which takes most of the time.

    Raises ValueError without a reasoning, and for fewer than two distinct prompts.
    """
    if not len(source) or log_likelihood.shape[1] < 2:
        raise ValueError(f"{len(source)} reasonings and {log_likelihood.shape[1]} prompts; needed are 1 and 2")
    rows, shares = np.arange(len(source)), weights / weights.sum()
    own = log_likelihood[rows, source]
    mixture = mixtures(log_likelihood, source, shares).log_mean
    few = not nulls or len(np.unique(task)) < MIN_TASKS
    return ProbeEvaluation(
        tasks=tuple(tasks),
        mi=task_means(own - mixture, task, len(tasks)),
        upper=task_means(own - _without_own(log_likelihood, source, shares), task, len(tasks)),
        ceiling=task_means(information_bound(shares, source), task, len(tasks)).value,
        null=None if few else candidate_nulls(log_likelihood, lengths, source, mixture, seed)["mi_seq_est"],
        conditional_entropy=-float((own / lengths).mean()),
        share=float((~np.isnan(log_likelihood)).mean()),
    )


def _without_own(log_likelihood: np.ndarray, source: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """(n,) log of the mean of exp L over the scored prompts but a reasoning's own, weighted with `shares`."""
    others = ~np.isnan(log_likelihood)
    others[np.arange(len(source)), source] = False
    terms = np.where(others, log_likelihood + np.log(shares), -np.inf)
    top = terms.max(axis=1)
    return top + np.log(np.exp(terms - top[:, None]).sum(axis=1)) - np.log((others * shares).sum(axis=1))


def task_means(values: np.ndarray, task: np.ndarray, num_tasks: int) -> TaskMeans:
    """Means by task of `values` (n,) of n samples; `task` (n,): index of each sample's task, below `num_tasks`."""
    count = np.bincount(task, minlength=num_tasks).astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.bincount(task, weights=values, minlength=num_tasks) / count
        squares = np.bincount(task, weights=(values - mean[task]) ** 2, minlength=num_tasks)
        spread = np.where(count > 1, squares / (count - 1), np.nan)
    typical = float(np.nanmean(spread)) if (count > 1).any() else math.nan
    spread = np.where((count == 1), typical, spread)
    return TaskMeans(mean, spread / np.where(count > 0, count, np.nan), count)


def _interval(
    value: float, variance: np.ndarray, count: np.ndarray, num_tasks: int | None = None, degrees: int | None = None
) -> Interval | None:
    """Interval of the mean over `num_tasks` tasks of means with these variances, each from `count` reasonings."""
    known, sampled = np.isfinite(variance) & (count > 0), count > 1
    estimated = (known & sampled).any() or (known.any() and degrees is not None)
    if not estimated or (~np.isfinite(variance) & (count > 0)).any():
        return None
    total = float(variance[known].sum())
    error = math.sqrt(total) / (num_tasks or int((count > 0).sum()))
    # Welch's estimate of the degrees of freedom, corrected for the noise of the variances themselves: K + 1 and - 2.
    noise = float((variance[known & sampled] ** 2 / (count[known & sampled] + 1)).sum())
    if degrees is None:
        degrees = max(1, round(total**2 / noise - 2)) if noise > 0 else 1_000
    reach = t_quantile((1 + LEVEL) / 2, degrees) * error
    return Interval(value - reach, value + reach, error)


def bounds_of(name: str, found: Interval | None) -> dict[str, float]:
    """`NAME_low`, `NAME_high` and `NAME_standard_error`, NaN without an interval."""
    low, high, error = (found.low, found.high, found.standard_error) if found else (math.nan,) * 3
    return {f"{name}_low": low, f"{name}_high": high, f"{name}_standard_error": error}
