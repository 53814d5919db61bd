"""Does the answer follow from the reasoning? Estimates of the links between prompt X, reasoning Z and answer A.

MI (`kit.diagnosis.fixed_probe`) measures the link from X to Z only: reasoning that names its prompt may still be
ignored by the answer. Each of N fixed tasks has K pairs (Z_ik, A_ik), sampled by one policy version; A is the sampled
ids from the closing of the reasoning to the end of the answer. With log-likelihoods in nats per answer,

    l_ikr = log p(A_ik | X_i, Z_r)          l_own = log p(A_ik | X_i, Z_ik)

three links are estimated, and a curve:

    I(A;Z|X)     mean of l_own - log(1/K sum_m exp l_ikm), over the reasonings m of the same prompt
    D            mean of l_own - log(mean over j != i of p(A_ik | X_i, Z_j)), over the reasonings of other prompts
    X past Z     mean of l_own - log(1/N sum_j p(A_ik | X_j, Z_ik)), over the prompts
    curve        mean of log p(A_ik | X_i, first q of Z_ik) for q in `SHARES`

D is in nats per answer, so an answer of two actions can have twice the D of an answer of one. The share

    D / surprise         surprise = -mean log(mean over j != i of p(A_ik | X_i, Z_j))

is that of an answer's surprise under reasonings of other prompts which its own reasoning removes: at most 1, and
comparable where answers differ in length. Its interval is D's and the surprise's together, linear in both.

D estimates I(A;Z|X) + E KL(p(a|x) || E_z p(a|x,z)), where z comes from other prompts. D decides whether the answer
follows from the reasoning: reasoning that is the same each time for its prompt, and that the answer depends on fully,
has I(A;Z|X) = 0 and a large D. X past Z estimates the same with prompts and reasonings exchanged: it is 0 if Z contains
everything that A takes from X. It is unbiased if all pairs are scored.

I(A;Z|X) with the own reasoning in the mixture is biased low (van den Oord et al. 2018) and never above
min(log K, H(A|X)); with the own reasoning left out of the mixture it is biased high (Poole et al. 2019, section 2).
The truth lies between the two expectations. Null: the reasonings of a prompt are permuted over its answers,
`RESAMPLES` times.

The logarithm of D's mixture is biased low by its sampling noise; to second order, with s_j^2 the variance of
p(A | X_i, Z) over the K_j scored reasonings Z of task j, and W the number of other tasks, the correction is

    log q = log q^ + Var(q^) / (2 q^^2)          Var(q^) = 1/W^2 sum_j s_j^2 / K_j

Standard errors are for fixed tasks, as for the probe. In D each pair (Z, A) enters twice, as an answer and as a
reasoning in the mixtures of other answers: its value is its influence, the sum of both derivatives. With K = 2 the two
values of a prompt in I(A;Z|X) are functions of the same two pairs, so their spread says little about the estimate's;
as soon as one prompt has only two pairs, the variance between tasks is used for all of them, which is too large by the
differences between tasks. Where every prompt has one pair, that variance is used for D, X past Z and the curve too, and
a pair's influence on D counts whole instead of less its task's mean. Intervals are Student's t. They cover the
expectation of their form: the truth for D (to second order) and for X past Z.

Invariants:

- 0 or more is not enforced: sampling noise can take any estimate but the ceiling below 0.
- Reasonings of equal prompts are in one mixture, and never "of other prompts".
- Only prompts with two pairs count for I(A;Z|X): with one pair it is 0 by construction.

q = 0 and the parts of a reasoning are off-distribution: the policy never closed its reasoning there, so the start of
the curve mixes the lack of information with the model's surprise at an early end.

Pure numpy in float64; imports neither torch, Ray nor vLLM.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from squelch.kit.diagnosis.fixed_probe import MIN_TASKS, TaskMeans, bounds_of, task_means
from squelch.kit.diagnosis.metrics import DEPENDENCE_SHARE, LINK_KEYS, LINKS, LINKS_TESTED, SHARES, key_of
from squelch.kit.diagnosis.pair_budget import candidate_nulls, mixtures
from squelch.kit.diagnosis.uncertainty import RESAMPLES, Null, null_of

MIN_DEALS = 20
"""Fewest distinct permutations for a null: with fewer, no p-value can reach 0.05."""
MIN_DEPENDENCE_NATS = 0.01
"""Smallest D that counts as dependence: every model reacts a little to any change of its context."""
MIN_DEPENDENCE_SHARE = 0.1
"""Smallest share of the answer's surprise without its reasoning that D must explain: as 10% of the headroom of
retrieval (`kit.diagnosis.regime`)."""
SMALLEST_SURPRISE = 1e-6
"""Nats per answer below which an answer is certain without its reasoning, so that D has no share of it."""


@dataclass(frozen=True)
class LinksEvaluation:
    """Links of one probe evaluation, nats per answer. `information`, `information_upper`: I(A;Z|X) with the own
    reasoning in the mixture and without it; `ceiling`: min(log K, H(A|X)); `null`: of `information`, None with too few
    pairs; `dependence`: D; `surprise`: -mean log q, the answer's surprise under reasonings of other prompts;
    `dependence_share`: D / surprise, of no unit, None if the surprise is 0;
    `past_reasoning`: X to A past Z; `answer_entropy`: H(A|X,Z); `truncated`: the curve, by SHARES; `references`: share
    of the (answer, reasoning of another prompt) pairs that were scored."""

    information: TaskMeans | None
    information_upper: TaskMeans | None
    ceiling: float
    null: Null | None
    dependence: TaskMeans
    dependence_null: Null | None
    dependence_share: TaskMeans | None
    surprise: float
    past_reasoning: TaskMeans
    answer_entropy: float
    truncated: tuple[TaskMeans, ...]
    references: float

    @property
    def follows(self) -> bool | None:
        """Whether the answer depends on its reasoning: D's interval lies above 0 and its null is rejected, and D is at
        least `MIN_DEPENDENCE_NATS` and `MIN_DEPENDENCE_SHARE` of the surprise. None without an interval or a null."""
        found, null = self.dependence.interval(), self.dependence_null
        if found is None or null is None:
            return None
        least = max(MIN_DEPENDENCE_NATS, MIN_DEPENDENCE_SHARE * self.surprise)
        return found.low > 0 and null.p_value <= 0.05 and self.dependence.value >= least

    def metrics(self) -> dict[str, float]:
        """Flat keys below `probe/link/`, those of LINK_KEYS; unknown values are NaN."""
        flat: dict[str, float] = {}
        for name in (*LINKS, DEPENDENCE_SHARE):
            found: TaskMeans | None = vars(self)[name]
            flat |= {name: found.value if found else math.nan, **bounds_of(name, found.interval() if found else None)}
        for name, null in zip(LINKS_TESTED, (self.null, self.dependence_null), strict=True):
            flat[f"{name}_p_value"] = null.p_value if null else math.nan
            flat[f"{name}_null_95"] = null.point_95 if null else math.nan
        for share, point in zip(SHARES, self.truncated, strict=True):
            flat |= {key_of(share): point.value, **bounds_of(key_of(share), point.interval())}
        flat |= {"ceiling": self.ceiling, "surprise": self.surprise, "answer_entropy": self.answer_entropy}
        flat |= {"references_ratio": self.references, "answers": float(self.dependence.count.sum())}
        flat["follows"] = math.nan if self.follows is None else float(self.follows)
        return {key: flat[key] for key in LINK_KEYS}


def read_links(
    swapped: np.ndarray,
    prompts: np.ndarray,
    truncated: np.ndarray,
    task: np.ndarray,
    source: np.ndarray,
    weights: np.ndarray,
    num_tasks: int,
    seed: Sequence[int] = (0,),
    nulls: bool = True,
) -> LinksEvaluation:
    """The links from n pairs of a reasoning and its answer, all finite nats per answer.

    Args:
        swapped: (n, n) log p(A_s | X_s, Z_r), of answer s under its own prompt and the reasoning of pair r; NaN for
            pairs that were not scored, never for reasonings of the same prompt.
        prompts: (n, num_columns) log p(A_s | X_j, Z_s); NaN if not scored, never at the own prompt.
        truncated: (n, len(SHARES)) log p(A_s | X_s, first q of Z_s).
        task: (n,) index of each pair's task, below `num_tasks`.
        source: (n,) column of each pair's prompt.
        weights: (num_columns,) number of tasks with that prompt.
        seed: of the nulls' permutations.
        nulls: whether to compute nulls, which takes most of the time.

    Raises ValueError if an answer was scored under no reasoning of another prompt.
    """
    own, same = np.diag(swapped).copy(), source[:, None] == source
    scored = ~np.isnan(swapped) & ~same
    if not len(own) or not scored.any(axis=1).all():
        raise ValueError(f"{len(own)} answers; each must be scored under the reasoning of another prompt")
    log_q, influence = _other_reasonings(swapped, scored, task, num_tasks)
    count = np.bincount(task, minlength=num_tasks)
    mass = 1 / ((count > 0).sum() * count[task])
    role = _centred((mass[:, None] * influence).sum(axis=0), task, num_tasks)
    few = not nulls or len(np.unique(task)) < MIN_TASKS
    candidates = np.where(scored | np.eye(len(own), dtype=bool), swapped, np.nan)
    rows, one = np.arange(len(own)), np.ones(len(own))
    column_mean = mixtures(prompts, source, weights / weights.sum()).log_mean
    pairs = _within(swapped, same, task, source, num_tasks, seed if nulls else None)
    gain, surprise = own - log_q - role / mass, -log_q - role / mass
    return LinksEvaluation(
        *pairs,
        dependence=_means(gain, task, num_tasks),
        dependence_null=None if few else candidate_nulls(candidates, one, rows, log_q, (*seed, 1))["mi_seq_est"],
        dependence_share=_ratio(gain, surprise, task, num_tasks),
        surprise=-task_means(log_q, task, num_tasks).value,
        past_reasoning=_means(own - column_mean, task, num_tasks),
        answer_entropy=-task_means(own, task, num_tasks).value,
        truncated=tuple(_means(values, task, num_tasks) for values in truncated.T),
        references=float(scored.sum() / (~same).sum()),
    )


def _other_reasonings(
    swapped: np.ndarray, scored: np.ndarray, task: np.ndarray, num_tasks: int
) -> tuple[np.ndarray, np.ndarray]:
    """(log q (n,), influence (n, n)): the mixture of each answer over the `scored` (n, n) reasonings of other prompts,
    in which every other task has the same weight; and how much each reasoning moves it, compared with one that is as
    likely as the mixture. So a reasoning under which no answer was scored moves it as one that makes no difference."""
    values = np.where(scored, swapped, -np.inf)
    top = values.max(axis=1, keepdims=True)
    ratio, member = np.exp(values - top), np.eye(num_tasks)[task]
    count, total = scored @ member, ratio @ member
    used = count > 0
    weight = used / np.maximum(count, 1) / used.sum(axis=1, keepdims=True)
    mixture = (total * weight).sum(axis=1, keepdims=True)
    spread = _spread(ratio @ member, (ratio**2) @ member, count)
    noise = (spread * np.maximum(count, 1) * weight**2).sum(axis=1) / mixture[:, 0] ** 2
    return top[:, 0] + np.log(mixture[:, 0]) + noise / 2, (ratio / mixture - scored) * weight[:, task]


def _spread(total: np.ndarray, squares: np.ndarray, count: np.ndarray) -> np.ndarray:
    """(n, num_tasks) sample variance of an answer's likelihood over each task's reasonings; for a task with one
    reasoning the mean of the others', and 0 if no task has two."""
    several = count > 1
    found = np.where(several, squares - total**2 / np.maximum(count, 1), 0.0) / np.maximum(count - 1, 1)
    typical = found.sum(axis=1, keepdims=True) / np.maximum(several.sum(axis=1, keepdims=True), 1)
    return np.maximum(np.where(count == 1, typical, found), 0.0)


def _within(
    swapped: np.ndarray,
    same: np.ndarray,
    task: np.ndarray,
    source: np.ndarray,
    num_tasks: int,
    seed: Sequence[int] | None,
) -> tuple[TaskMeans | None, TaskMeans | None, float, Null | None]:
    """`information`, `information_upper`, `ceiling` and `null` from the pairs of prompts that have two; no null without
    a seed."""
    kept = same.sum(axis=1) > 1
    if not kept.any():
        return None, None, math.nan, None
    values = np.where(same, swapped, -np.inf)[np.ix_(kept, kept)]
    block, own, task = source[kept], np.diag(values).copy(), task[kept]
    size = same.sum(axis=1)[kept]
    mixture, lower = _form(values, own, size, task, num_tasks, leave_out=False)
    _, upper = _form(values, own, size, task, num_tasks, leave_out=True)
    entropy = -task_means(mixture, task, num_tasks).value
    ceiling = min(task_means(np.log(size), task, num_tasks).value, entropy)
    null = None if seed is None else _null(values - mixture[:, None], block, task, num_tasks, seed)
    return lower, upper, ceiling, null


def _form(
    values: np.ndarray, own: np.ndarray, size: np.ndarray, task: np.ndarray, num_tasks: int, leave_out: bool
) -> tuple[np.ndarray, TaskMeans]:
    """(log mixture (n,), the estimate) over the reasonings of the same prompt; `values`: (n, n), -inf for other
    prompts; `size`: (n,) pairs of the prompt."""
    terms = values.copy()
    if leave_out:
        np.fill_diagonal(terms, -np.inf)
    top = terms.max(axis=1, keepdims=True)
    mixture = (top + np.log(np.exp(terms - top).sum(axis=1, keepdims=True)))[:, 0] - np.log(size - leave_out)
    means = task_means(own - mixture, task, num_tasks)
    return mixture, _between(means) if size.min() == 2 else means


def _means(values: np.ndarray, task: np.ndarray, num_tasks: int) -> TaskMeans:
    """As `task_means`, with the variance between tasks where no task has a second value."""
    found = task_means(values, task, num_tasks)
    return _between(found) if found.count.max() == 1 else found


def _ratio(part: np.ndarray, whole: np.ndarray, task: np.ndarray, num_tasks: int) -> TaskMeans | None:
    """The mean of `part` over that of `whole`, (n,) each, with the variance of its linear form; None unless the whole
    is above 0."""
    total = task_means(whole, task, num_tasks).value
    if not total > SMALLEST_SURPRISE:
        return None
    share = task_means(part, task, num_tasks).value / total
    return _means(share + (part - share * whole) / total, task, num_tasks)


def _between(means: TaskMeans) -> TaskMeans:
    """The means with the variance between tasks in place of that within them; without an interval for one task."""
    num = int((means.count > 0).sum())
    variance = float(np.nanvar(means.mean, ddof=1)) if num > 1 else math.nan
    return TaskMeans(means.mean, np.where(means.count > 0, variance, np.nan), means.count, num - 1)


def _centred(values: np.ndarray, task: np.ndarray, num_tasks: int) -> np.ndarray:
    """(n,) values less the mean of their task, or of all if no task has a second value."""
    count = np.maximum(np.bincount(task, minlength=num_tasks), 1)
    if count.max() == 1:
        return values - values.mean()
    return values - (np.bincount(task, values, num_tasks) / count)[task]


def _null(gain: np.ndarray, block: np.ndarray, task: np.ndarray, num_tasks: int, seed: Sequence[int]) -> Null | None:
    """The null of I(A;Z|X): each prompt's reasonings are permuted over its answers. `gain`: (n, n) log-likelihood less
    the log mixture; `block`: (n,) prompt. None if there are fewer than MIN_DEALS permutations or MIN_TASKS tasks."""
    blocks = [np.flatnonzero(block == one) for one in np.unique(block)]
    deals = math.prod(math.factorial(min(len(rows), 10)) for rows in blocks)
    if deals < MIN_DEALS or len(np.unique(task)) < MIN_TASKS:
        return None
    rng, count = np.random.default_rng((*seed, 0)), np.bincount(task, minlength=num_tasks)
    mass = 1 / ((count > 0).sum() * count[task])
    draws = np.zeros(RESAMPLES)
    for rows in blocks:
        dealt = rng.permuted(np.tile(rows, (RESAMPLES, 1)), axis=1)
        draws += (mass[rows] * gain[rows, dealt]).sum(axis=1)
    return null_of(float((mass * np.diag(gain)).sum()), draws)
