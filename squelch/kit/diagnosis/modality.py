"""Does the reasoning depend on what was shown, or on what was written? MI by modality, for prompts with pictures.

A prompt X = (T, V) has its ids outside pictures, T, and all its pictures, V. Pictures are swapped together, and only
between prompts of one layout: the same number of pictures, on the same grids. Each of N tasks has reasonings Z_ik. With
l_ik(a, b) = log q(Z_ik | T_a, V_b), nats per sequence:

    D_V = mean over i of the mean over k of [ l_ik(i, i) - log mean_(j != i) exp l_ik(i, j) ]
    D_T = the same with l_ik(j, i)

D_V estimates I(V;Z|T) + E KL(p(z|t) || E_v p(z|t,v)) with v drawn without regard to t, and hence I(V;Z|T) exactly where
T and V are independent; D_T the same with the parts exchanged. Where a reasoning can be had from either part, both are
near 0 while MI is high: the parts are redundant.

The logarithm of the mixture is biased low by the draw of the other tasks; to second order, with s^2 the variance of
q(Z | T_i, V_j) over the W other tasks j that were scored, the correction is

    log q = log q^ + s^2 / (2 W q^^2)

as D's (`kit.diagnosis.links`), in which the draws are reasonings. Here they are tasks, each of which counts with its
reasonings and in the mixtures of the others. So the interval is Student's t of the delete-one jackknife over tasks,
with one degree of freedom less than there are tasks. Null: in each of RESAMPLES random deals, a task has one of the
parts under which its reasonings were scored as their own, for all of them the same. Where a part says nearly all, the
few other tasks under which a reasoning is likely are missing from most draws, and the estimate is too high: it is then
large anyway.

Invariants:

- A task whose part equals the own one is in no mixture: it would count the own part as another.
- A task with fewer than MIN_TASKS - 1 others of its layout is left out; with fewer than MIN_TASKS tasks left, there is
  no evaluation. So D_T is not known where all texts are equal.

Pure numpy in float64; imports neither torch, Ray nor vLLM.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from squelch.kit.diagnosis.fixed_probe import MIN_TASKS, bounds_of
from squelch.kit.diagnosis.links import MIN_DEPENDENCE_NATS, MIN_DEPENDENCE_SHARE
from squelch.kit.diagnosis.uncertainty import LEVEL, RESAMPLES, Interval, Null, null_of, t_quantile


@dataclass(frozen=True)
class PartEvaluation:
    """Dependence of the reasoning on one part of its prompt, nats per sequence. `null`: None if it was not asked for;
    `surprise`: -mean log q, of a reasoning under other tasks' parts; `tasks`: tasks that count."""

    value: float
    interval: Interval
    null: Null | None
    surprise: float
    tasks: int

    @property
    def depends(self) -> bool | None:
        """Whether the reasoning depends on the part: the interval lies above 0, the null is rejected, and the value is
        at least `MIN_DEPENDENCE_NATS` and `MIN_DEPENDENCE_SHARE` of the surprise. None without a null."""
        if self.null is None:
            return None
        least = max(MIN_DEPENDENCE_NATS, MIN_DEPENDENCE_SHARE * self.surprise)
        return self.interval.low > 0 and self.null.p_value <= 0.05 and self.value >= least

    def metrics(self, name: str) -> dict[str, float]:
        """Flat keys that begin with `name`; unknown values are NaN."""
        flat = {name: self.value, **bounds_of(name, self.interval), f"{name}_surprise": self.surprise}
        flat[f"{name}_p_value"] = self.null.p_value if self.null else math.nan
        return flat | {f"{name}_depends": math.nan if self.depends is None else float(self.depends)}


def text_alone(picture: PartEvaluation | None, text: PartEvaluation | None) -> bool | None:
    """Whether the reasoning depends on the text and not on the pictures; None where one of the two is not known. Both
    must reach the same floors: of parts that say the same, each of which leaves little to the other, the text's share
    may be significant, and the reasoning is not blind."""
    found = [None if one is None else one.depends for one in (picture, text)]
    if None in found:
        return None
    assert picture is not None and text is not None
    return not found[0] and bool(found[1]) and picture.value < text.interval.low


def read_part(
    swapped: np.ndarray, task: np.ndarray, part: np.ndarray, seed: Sequence[int] = (0,), nulls: bool = True
) -> PartEvaluation | None:
    """D_V or D_T from n reasonings of N tasks; None where too few tasks have others of their layout.

    Args:
        swapped: (n, N) log q of each reasoning under its own prompt with task j's pictures (D_V) or text (D_T) in place
            of its own, nats per sequence; NaN for a pair of two layouts, or that was not scored, never at the own task.
        task: (n,) index of each reasoning's task.
        part: (N,) equal for tasks with the same pictures (D_V) or text (D_T).
        seed: of the null's assignments.
        nulls: whether to compute a null, which takes most of the time.

    Raises ValueError for a reasoning without a finite value at its own task.
    """
    own = swapped[np.arange(len(task)), task]
    if not np.isfinite(own).all():
        raise ValueError(f"{int((~np.isfinite(own)).sum())} of {len(own)} reasonings were not scored at their own task")
    used, scored = counted(swapped, task, part), _scored(swapped, task, part)
    if not used.any():
        return None
    own, task, scored = own[used], task[used], scored[used]
    terms = np.where(scored, swapped[used], -np.inf)
    gain = own - _log_mean(terms)
    value, log_q = _mean_of_tasks(gain, task), own - gain
    return PartEvaluation(
        value=value,
        interval=_interval(own, terms, task, value),
        null=_null(own, terms, task, value, log_q, seed) if nulls else None,
        surprise=-_mean_of_tasks(log_q, task),
        tasks=len(np.unique(task)),
    )


def counted(swapped: np.ndarray, task: np.ndarray, part: np.ndarray) -> np.ndarray:
    """(n,) whether each reasoning counts in `read_part`, of the same arguments; none does where too few tasks would."""
    used = np.array([len(set(part[row])) >= MIN_TASKS - 1 for row in _scored(swapped, task, part)], dtype=bool)
    return used & (len(np.unique(task[used])) >= MIN_TASKS)


def _scored(swapped: np.ndarray, task: np.ndarray, part: np.ndarray) -> np.ndarray:
    """(n, N) the pairs with another part that were scored."""
    return ~np.isnan(swapped) & (part != part[task][:, None])


def _null(
    own: np.ndarray, terms: np.ndarray, task: np.ndarray, value: float, log_q: np.ndarray, seed: Sequence[int]
) -> Null:
    """`value` among those of random deals. One draw a task: its reasonings are likely under the same parts, so that
    draws of their own would average out what one task's chance does."""
    scored = np.isfinite(terms)
    columns, number = np.argsort(~scored, axis=1, kind="stable"), scored.sum(axis=1)
    _, place = np.unique(task, return_inverse=True)
    drawn = np.random.default_rng(seed).random((RESAMPLES, place.max() + 1))[:, place]
    picked = (drawn * (number + 1)).astype(int)  # the last one is the own part
    rows = np.arange(len(own))
    dealt = np.where(picked == number, own, terms[rows, columns[rows, np.minimum(picked, number - 1)]]) - log_q
    weight = 1 / (np.bincount(place)[place] * (place.max() + 1))
    return null_of(value, dealt @ weight)


def _log_mean(terms: np.ndarray) -> np.ndarray:
    """(n,) corrected log of the mean of exp `terms` (n, N) over the finite ones, of which each row has two or more."""
    count, top = np.isfinite(terms).sum(axis=1), terms.max(axis=1)
    ratio = np.exp(terms - top[:, None])
    mean = ratio.sum(axis=1) / count
    spread = np.maximum((ratio**2).sum(axis=1) - count * mean**2, 0.0) / (count - 1)
    return top + np.log(mean) + spread / (2 * count * mean**2)


def _mean_of_tasks(values: np.ndarray, task: np.ndarray) -> float:
    """The mean over tasks of the mean of each task's values."""
    _, place, count = np.unique(task, return_inverse=True, return_counts=True)
    return float((np.bincount(place, values) / count).mean())


def _interval(own: np.ndarray, terms: np.ndarray, task: np.ndarray, value: float) -> Interval:
    """The 95% interval from the values without one task: without its reasonings, and in the mixtures of the others
    without its part."""
    there = np.union1d(task, np.flatnonzero(np.isfinite(terms).any(axis=0)))
    left_out = np.zeros(len(there))
    for place, gone in enumerate(there):
        kept, others = task != gone, np.where(np.arange(terms.shape[1]) == gone, -np.inf, terms)
        left_out[place] = _mean_of_tasks(own[kept] - _log_mean(others[kept]), task[kept])
    error = math.sqrt((len(there) - 1) / len(there) * float(((left_out - left_out.mean()) ** 2).sum()))
    reach = t_quantile((1 + LEVEL) / 2, len(there) - 1) * error
    return Interval(value - reach, value + reach, error)
