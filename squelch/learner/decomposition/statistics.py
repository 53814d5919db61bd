"""Metrics of the gradient decomposition (paper, section 3.1, Figure 3, Table 2, appendices H, K, N). Pure numpy.

Definitions: for a prompt x with trajectories k of return R_k, s_k is the gradient of trajectory k's aggregated
log-probability (aggregated as the objective does), and g_task = 1/n sum_k (R_k - mean R) s_k. All norms are Euclidean
norms over all trained parameters, of one prompt's mean over its trajectories. The scale of a bucket's metrics therefore
does not depend on the number of its prompts.

Invariants:

- Each group is in exactly one bucket; buckets are ordered by reward variance, and their sizes differ by at most one.
- A group's trajectories are split into two halves. Each half's estimate of g_task has its own baseline and divides by
  its size minus one, so that it is unbiased and independent of the other half's. The inner product of the two is
  therefore an unbiased estimate of |g_signal|^2 (it may be negative).
- No function waits, and the module does not import torch.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

BUCKETS = 6
"""Number of buckets in Figure 3."""
MIN_SPLIT = 4
"""Smallest number of trajectories of a group that is split: each half needs two for a baseline."""


@dataclass(frozen=True)
class GroupMetrics:
    """Gradient norms of one prompt; `_std`: with advantages divided by the group's std. NaN if undefined."""

    group_id: str
    num_trajectories: int
    reward_variance: float
    """Sample variance (ddof = 1) of the returns without format penalties, by which groups are sorted into buckets."""
    task: float
    task_std: float
    kl: float
    """Norm of the KL term's gradient, including its coefficient; the same holds for `entropy` and for the norm of their
    sum, `regulariser`."""
    entropy: float
    regulariser: float
    total: float
    """Norm of the sum of task and regulariser gradients, with the advantages that the run trains on."""
    score_square: float
    """Mean over trajectories of |s_k|^2."""
    bound: float
    """Theorem H.2: sqrt(variance (ddof = 0) of the returns that advantages compare) * sqrt(`score_square`) >=
    `task`."""
    signal_square: float
    """Estimate of |g_signal|^2 from two halves; it is unbiased and may be negative."""
    noise_square: float
    """Estimate of E|g_task-noise|^2 for the mean of both halves."""

    @property
    def dominance(self) -> float:
        """rho(x) of appendix K.1: regulariser / (task + regulariser)."""
        return share(self.regulariser, self.task)

    @property
    def dominance_std(self) -> float:
        """`dominance` with the std-normalised task gradient."""
        return share(self.regulariser, self.task_std)

    @property
    def snr(self) -> float:
        """SNR(x) of section 3.2: |signal| / (|task noise| + |regulariser|). It is noisy, because it comes from a single
        split into halves. It is 0 if the estimate of the signal is negative, and NaN if the group was not split."""
        noise = math.sqrt(max(self.noise_square, 0.0))
        return _ratio(math.sqrt(max(self.signal_square, 0.0)), noise + self.regulariser)

    @property
    def tightness(self) -> float:
        """`task` as a share of Theorem H.2's bound, at most 1; it includes the sampling noise in `task`."""
        return self.task / self.bound if self.bound > 0 else math.nan


@dataclass(frozen=True)
class BucketMetrics:
    """Groups of similar reward variance: means over the groups, and norms of their mean gradient (prefix `mean_`)."""

    bucket: int
    """Number of the bucket; 1 has the lowest variance."""
    num_groups: int
    variance_low: float
    variance_high: float
    reward_variance: float
    task: float
    task_std: float
    kl: float
    entropy: float
    regulariser: float
    dominance: float
    dominance_std: float
    mean_task: float
    mean_task_std: float
    mean_kl: float
    mean_entropy: float
    mean_regulariser: float
    signal_square: float
    signal_square_error: float
    """Standard error of `signal_square`, which is a mean over groups."""
    noise_square: float
    snr: float
    """Section 3.2: |signal| / (|task noise| + |regulariser|), with the bucket's root mean square of signal and noise
    and the mean of the regulariser; 0 if the estimate of the signal is negative."""
    snr_task: float
    """Appendix H.4, without the regulariser: |signal| / |task noise|."""
    score_square: float
    tightness: float
    """Mean share of Theorem H.2's bound that the task gradient reaches."""
    tightness_signal: float
    """`tightness` without the sampling noise: sqrt(mean of `signal_square`) / sqrt(mean of bound^2), over the groups
    that were split."""


@dataclass(frozen=True)
class Decomposition:
    """The data of Figure 3 for one policy version."""

    groups: tuple[GroupMetrics, ...]
    buckets: tuple[BucketMetrics, ...]

    @property
    def trends(self) -> dict[str, float]:
        """Spearman rank correlation, over groups, of the reward variance with each norm. In Figure 3, `task` rises with
        the reward variance and `regulariser` does not."""
        variance = [g.reward_variance for g in self.groups]
        names = ("task", "task_std", "kl", "entropy", "regulariser", "dominance", "score_square")
        values = {name: [float(getattr(g, name)) for g in self.groups] for name in names}
        return {name: rank_correlation(variance, values[name]) for name in names}

    def as_data(self) -> dict[str, Any]:
        """The decomposition as plain data for JSON; undefined values are None."""
        tree = {
            "groups": [asdict(g) | {name: getattr(g, name) for name in GROUP_RATIOS} for g in self.groups],
            "buckets": [asdict(b) for b in self.buckets],
            "trends": self.trends,
        }
        return finite(tree)

    def flat(self) -> dict[str, float]:
        """Metrics of a training step: `gradients/q1/task`, ... (see `learner.decomposition.metrics`)."""
        names = FLAT_NORMS + FLAT_RATIOS
        found = {f"gradients/q{b.bucket}/{name}": float(vars(b)[name]) for b in self.buckets for name in names}
        return found | {"gradients/groups": float(len(self.groups))}


GROUP_RATIOS = ("dominance", "snr", "tightness")
FLAT_NORMS = ("task", "task_std", "kl", "entropy", "regulariser", "mean_task", "mean_task_std", "mean_regulariser")
FLAT_RATIOS = ("dominance", "dominance_std", "snr", "tightness", "reward_variance")


def bucket_indices(variances: Sequence[float], ids: Sequence[str], count: int = BUCKETS) -> list[np.ndarray]:
    """Indices of the groups of each bucket, the lowest variance first; sizes differ by at most one.

    Groups of equal variance are ordered by id. With fewer groups than `count`, each group has its own bucket.
    """
    order = sorted(range(len(ids)), key=lambda i: (variances[i], ids[i]))
    return np.array_split(np.array(order, dtype=np.int64), min(count, len(ids))) if ids else []


def split_halves(group_id: str, num_trajectories: int) -> np.ndarray | None:
    """(num_trajectories,) bool, true for the first half; the split is random, seeded by the group's id. None below
    `MIN_SPLIT` trajectories."""
    if num_trajectories < MIN_SPLIT:
        return None
    seed = int.from_bytes(hashlib.sha256(group_id.encode()).digest()[:8], "big")
    first = np.zeros(num_trajectories, dtype=bool)
    first[np.random.default_rng(seed).permutation(num_trajectories)[: num_trajectories // 2]] = True
    return first


def half_weights(returns: np.ndarray, half: np.ndarray) -> np.ndarray:
    """Weights (num_trajectories,) of s_k in a half's estimate of g_task: (R_k - its mean) / (its size - 1); 0 outside.

    The weighted sum is the sample covariance of R and s, an unbiased estimate of E[(R - b) s]. (With the group's own
    mean as baseline, division by n would bias it by the factor (n - 1) / n.)
    """
    inside = np.asarray(returns, dtype=np.float64)[half]
    weights = np.zeros(len(returns))
    weights[half] = (inside - inside.mean()) / (len(inside) - 1)
    return weights


def split_metrics(first_square: float, inner: float, second_square: float) -> tuple[float, float]:
    """(signal^2, noise^2) of a group from its halves' |a|^2, <a, b>, |b|^2.

    E<a, b> = |g|^2, and |a - b|^2 / 4 is an unbiased estimate of E|(a + b) / 2 - g|^2. Their sum is |(a + b) / 2|^2.
    """
    return inner, (first_square + second_square - 2 * inner) / 4


def gradient_bound(ranked: np.ndarray, score_square: float) -> float:
    """Right side of Theorem H.2 for the sample: sqrt(variance, ddof = 0) * sqrt(mean |s|^2). `ranked`: the returns."""
    return math.sqrt(float(np.var(np.asarray(ranked, dtype=np.float64))) * score_square)


def share(regulariser: float, task: float) -> float:
    """regulariser / (task + regulariser) in [0, 1]; NaN when both are 0."""
    return regulariser / (task + regulariser) if task + regulariser > 0 else math.nan


def summarise_bucket(bucket: int, groups: Sequence[GroupMetrics], mean_norms: dict[str, float]) -> BucketMetrics:
    """Metrics of one bucket. `mean_norms`: norm of the mean gradient by part (task, task_std, kl, ...)."""
    variances = _column(groups, "reward_variance")
    signal, noise = _column(groups, "signal_square"), _column(groups, "noise_square")
    regulariser = float(_column(groups, "regulariser").mean())
    root_signal, root_noise = math.sqrt(max(_mean(signal), 0.0)), math.sqrt(max(_mean(noise), 0.0))
    known = ~np.isnan(signal)
    split, bounds = bool(known.any()), np.square(_column(groups, "bound"))[known]
    return BucketMetrics(
        bucket=bucket,
        num_groups=len(groups),
        variance_low=float(variances.min()),
        variance_high=float(variances.max()),
        reward_variance=float(variances.mean()),
        **{name: _mean(_column(groups, name)) for name in MEANS},
        **{f"mean_{name}": mean_norms[name] for name in VECTORS},
        signal_square=_mean(signal),
        signal_square_error=_error(signal),
        noise_square=_mean(noise),
        snr=_ratio(root_signal, root_noise + regulariser) if split else math.nan,
        snr_task=_ratio(root_signal, root_noise) if split else math.nan,
        tightness_signal=_ratio(root_signal, math.sqrt(_mean(bounds))) if split else math.nan,
    )


VECTORS = ("task", "task_std", "kl", "entropy", "regulariser")
"""Parts whose mean gradient over a bucket is kept."""
MEANS = (*VECTORS, "dominance", "dominance_std", "score_square", "tightness")


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's rank correlation; ties get their mean rank and pairs with a NaN are excluded. NaN when either side
    does not vary."""
    pairs = np.array([(a, b) for a, b in zip(one, other, strict=True) if not (math.isnan(a) or math.isnan(b))])
    if len(pairs) < 2:
        return math.nan
    first, second = (_ranks(column) for column in pairs.T)
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return math.nan
    return float(np.corrcoef(first, second)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[inverse]


def _column(groups: Sequence[GroupMetrics], name: str) -> np.ndarray:
    return np.array([getattr(g, name) for g in groups], dtype=np.float64)


def _mean(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def _error(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.std(ddof=1) / math.sqrt(len(known))) if len(known) > 1 else math.nan


def _ratio(one: float, other: float) -> float:
    return one / other if other > 0 else math.nan


def finite(tree: Any) -> Any:
    """Plain data with None in the place of every number that JSON does not have."""
    if isinstance(tree, dict):
        return {key: finite(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [finite(value) for value in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree
