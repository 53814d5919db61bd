"""The gradient decomposition on the learner: task, KL and entropy gradients of each prompt (paper, section 3.1).

Each group is processed separately and normalised as the objective would normalise a step of that group alone.
`learner.decomposition.statistics` computes the metrics; docs/guide/gradients.md explains how to read them.

Invariants:

- Nothing is updated: parameters, optimizer state and counts do not change.
- `decompose` is a collective: every rank passes the same groups and runs the same passes. Gradients stay sharded; only
  inner products are summed over ranks. Besides the model, a rank holds at most `MAX_GRADIENTS` (`learner.config`) of
  its own shards.
- The ratio is 1 at the policy's own weights, so no token is clipped. A token's weight is min(exp(learner - rollout),
  mismatch_cap), with the default cap where that is 0: 1 up to numerics if the present policy sampled the token;
  otherwise it corrects for staleness.

Waiting: each rank waits for the other ranks, in collectives, at most the process group's time-out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from squelch.kit.records.equal_rewards import are_equal
from squelch.kit.records.records import Trajectory
from squelch.learner import batching
from squelch.learner.batching import Groups, Row
from squelch.learner.config import KLConfig, ObjectiveConfig
from squelch.learner.decomposition.statistics import (
    BUCKETS,
    Decomposition,
    GroupMetrics,
    bucket_indices,
    gradient_bound,
    half_weights,
    split_halves,
    split_metrics,
    summarise_bucket,
)
from squelch.learner.objective.components import ADVANTAGES, AGGREGATIONS, StepSize
from squelch.learner.trainer import Trainer

Shards = list[Tensor]
"""One gradient: this rank's shard for every trained parameter."""


def decompose(trainer: Trainer, groups: Groups, num_buckets: int = BUCKETS) -> Decomposition:
    """Figures of Figure 3 for the groups, at the trainer's weights and with its regularisers. A collective.

    Raises ValueError for non-finite groups, and when fewer than two groups have two trajectories to compare.
    """
    batching.refuse_non_finite(groups)
    alive = [(gid, members) for gid, members in batching.survivors(groups) if _usable(members)]
    if len(alive) < 2:
        raise ValueError(f"{len(alive)} of {len(groups)} groups have two trajectories to compare; 2 groups are needed")
    variances = [_variance(members) for _, members in alive]
    found, buckets = [], []
    for number, indices in enumerate(bucket_indices(variances, [gid for gid, _ in alive], num_buckets), start=1):
        metrics, norms = _bucket(trainer, [alive[i] for i in indices])
        found += metrics
        buckets.append(summarise_bucket(number, metrics, norms))
    return Decomposition(tuple(found), tuple(buckets))


def score_objective(own: ObjectiveConfig) -> ObjectiveConfig:
    """The objective whose gradient at advantage 1 is -s_k: no regulariser, ratio 1, truncated importance weights."""
    return ObjectiveConfig(
        aggregation=own.aggregation,
        normaliser_tokens=own.normaliser_tokens,
        anchor="recomputed",
        mismatch_cap=own.mismatch_cap or ObjectiveConfig().mismatch_cap,
        entropy_coefficient=0.0,
        kl=KLConfig(coefficient=0.0),
    )


def regulariser_objectives(own: ObjectiveConfig) -> dict[str, ObjectiveConfig]:
    """Objectives of the KL term alone and the entropy term alone, with `own`'s coefficients; without those that are
    0."""
    plain = score_objective(own).model_copy(update={"anchor": "rollout"})
    found = {}
    if own.kl_in_loss > 0:
        found["kl"] = plain.model_copy(update={"kl": own.kl})
    if own.entropy_coefficient > 0:
        found["entropy"] = plain.model_copy(update={"entropy_coefficient": own.entropy_coefficient})
    return found


@dataclass
class Parts:
    """Loss gradients of one group: `task` uses centred returns; `scale` * `task` is the std-normalised task
    gradient."""

    task: Shards
    halves: tuple[Shards, Shards] | None
    regularisers: dict[str, Shards]
    score_square: float
    scale: float


def group_parts(trainer: Trainer, group_id: str, members: Sequence[Trajectory]) -> Parts:
    """Runs all passes over one group: one per trajectory for the task gradient, and one per regulariser. A
    collective."""
    own = trainer.config.objective
    rows = batching.to_rows([(group_id, members)], own)
    ranked = batching.ranked_returns(members, own)
    first = split_halves(group_id, len(members))
    halves = None if first is None else (half_weights(ranked, first), half_weights(ranked, ~first))
    by_index = {t.index: k for k, t in enumerate(members)}
    of_each = [list(found) for _, found in groupby(rows, key=lambda row: row.trajectory)]
    lengths = _length_factors(of_each, own, len(members))
    sums: list[Shards | None] = [None, None, None]
    square = 0.0
    for found, factor in zip(of_each, lengths, strict=True):
        k = by_index[found[0].index]
        score = trainer.row_gradients([replace(row, advantage=1.0) for row in found], score_objective(own))
        square += factor**2 * inner(score, score)
        weights = [(ranked[k] - ranked.mean()) / len(members)] + ([w[k] for w in halves] if halves else [])
        for i, weight in enumerate(weights):
            sums[i] = _add(sums[i], score, factor * float(weight))
    flat = [replace(row, advantage=0.0) for row in rows]
    regularisers = {name: trainer.row_gradients(flat, term) for name, term in regulariser_objectives(own).items()}
    task, *pair = (shards for shards in sums if shards is not None)
    return Parts(task, (pair[0], pair[1]) if pair else None, regularisers, square / len(members), _std_scale(ranked))


def inner(one: Shards, other: Shards) -> float:
    """Inner product of two gradients over all ranks. A collective."""
    products = [torch.sum(a.double() * b.double()) for a, b in zip(one, other, strict=True)]
    total = torch.stack(products).sum()
    dist.all_reduce(total)
    return float(total)


def norm(gradient: Shards) -> float:
    """Euclidean norm over all ranks. A collective."""
    return float(np.sqrt(inner(gradient, gradient)))


def _bucket(
    trainer: Trainer, groups: Sequence[tuple[str, list[Trajectory]]]
) -> tuple[list[GroupMetrics], dict[str, float]]:
    """Metrics of the bucket's groups, and the norms of its mean gradients."""
    sums: dict[str, Shards | None] = dict.fromkeys(("task", "task_std", "kl", "entropy"))
    metrics = [_add_group(trainer, group_id, members, sums, 1.0 / len(groups)) for group_id, members in groups]
    norms = {name: 0.0 if gradient is None else norm(gradient) for name, gradient in sums.items()}
    return metrics, norms | {"regulariser": _joint_norm([sums["kl"], sums["entropy"]])}


def _add_group(
    trainer: Trainer, group_id: str, members: Sequence[Trajectory], sums: dict[str, Shards | None], share: float
) -> GroupMetrics:
    """Metrics of one group, whose gradients are added to the bucket's sums. The group's own gradients are freed at the
    end, before those of the next group are computed."""
    parts = group_parts(trainer, group_id, members)
    metrics = _metrics(trainer, group_id, members, parts)
    sums["task"] = _add(sums["task"], parts.task, share)
    sums["task_std"] = _add(sums["task_std"], parts.task, share * parts.scale)
    for name, gradient in parts.regularisers.items():
        sums[name] = _add(sums[name], gradient, share)
    return metrics


def _metrics(trainer: Trainer, group_id: str, members: Sequence[Trajectory], parts: Parts) -> GroupMetrics:
    own = trainer.config.objective
    task = norm(parts.task)
    trained = parts.scale if ADVANTAGES[own.advantage].divides_by_std else 1.0
    regularisers = list(parts.regularisers.values())
    scaled = [trained * t for t in parts.task]
    return GroupMetrics(
        group_id=group_id,
        num_trajectories=len(members),
        reward_variance=_variance(members),
        task=task,
        task_std=parts.scale * task,
        **{name: norm(parts.regularisers[name]) if name in parts.regularisers else 0.0 for name in ("kl", "entropy")},
        regulariser=_joint_norm(regularisers),
        total=_joint_norm([scaled, *regularisers]),
        score_square=parts.score_square,
        bound=gradient_bound(batching.ranked_returns(members, own), parts.score_square),
        **_split(parts.halves),
    )


def _split(halves: tuple[Shards, Shards] | None) -> dict[str, float]:
    if halves is None:
        return {"signal_square": float("nan"), "noise_square": float("nan")}
    first, second = halves
    signal, noise = split_metrics(inner(first, first), inner(first, second), inner(second, second))
    return {"signal_square": signal, "noise_square": noise}


def _usable(members: Sequence[Trajectory]) -> bool:
    return len(members) > 1 and any(t.loss_mask.any() for t in members)


def _variance(members: Sequence[Trajectory]) -> float:
    return float(np.var([t.episode_return for t in members], ddof=1))


def _std_scale(ranked: np.ndarray) -> float:
    """The factor by which std-normalisation multiplies a group's advantages; 0 if all advantages are 0
    (`learner.objective.advantages`)."""
    return 0.0 if are_equal(ranked) else 1.0 / float(ranked.std(ddof=1))


def _length_factors(trajectories: Sequence[Sequence[Row]], own: ObjectiveConfig, num_trajectories: int) -> list[float]:
    """Per trajectory k: the ratio of s_k in the group's mean to the gradient of a pass over k alone, which normalises
    by the length of k only."""
    lengths = torch.tensor([sum(row.num_sampled for row in rows) for rows in trajectories], dtype=torch.int64)
    rule = AGGREGATIONS[own.aggregation]
    whole = StepSize(num_trajectories, int(lengths.sum()), own.normaliser_tokens)
    alone = [rule(one[None], StepSize(1, int(one), own.normaliser_tokens)) for one in lengths]
    return (num_trajectories * rule(lengths, whole) / torch.cat(alone)).tolist() if alone else []


def _add(total: Shards | None, gradient: Shards, weight: float) -> Shards:
    if total is None:
        return [weight * g for g in gradient]
    for sum_, g in zip(total, gradient, strict=True):
        sum_.add_(g, alpha=weight)
    return total


def _joint_norm(gradients: Sequence[Shards | None]) -> float:
    """Norm of the sum of the gradients that are not None; 0 if there are none. A collective."""
    there = [g for g in gradients if g is not None]
    if not there:
        return 0.0
    total = [torch.stack(pieces).sum(0) for pieces in zip(*there, strict=True)]
    return norm(total)
