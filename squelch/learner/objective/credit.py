"""Credit assignment: advantages that need a forward pass at step start (a critic's values, a KL in the reward).

`learner.batching` has already given every row the advantage that follows from its group's rewards alone. This module
processes a training step's micro-batches, on all ranks together, after the values and reference log-probabilities have
been computed and before the first update.

Invariants: every rank calls `assign` with its own micro-batches of the same plan, so that the collectives match; each
rank waits for the others at most the process group's time-out. Arithmetic is float64 numpy without gradients.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.distributed as dist

from squelch.learner.batching import Row
from squelch.learner.config import ObjectiveConfig
from squelch.learner.objective.advantages import group_advantages_with_costs
from squelch.learner.objective.gae import Moments, explained_variance, gae, whiten
from squelch.learner.objective.losses import kl_estimate
from squelch.learner.refusal import StepRefused
from squelch.learner.tensors import Batch

Steps = list[list[Batch]]
"""This rank's micro-batches of each optimizer step."""


@dataclass(frozen=True)
class Credit:
    """`steps`: micro-batches with their advantages (and returns); `metrics`: metrics over all ranks."""

    steps: Steps
    metrics: dict[str, float]


def assign(rows: Sequence[Row], steps: Steps, config: ObjectiveConfig, device: torch.device) -> Credit:
    """Advantages of the training step on `rows` (the rows of all ranks). A collective, unless no term needs a forward
    pass.

    Raises:
        RuntimeError: a micro-batch lacks the values or reference log-probabilities that are needed.
        StepRefused: a KL or value is not finite.
    """
    kl_in_reward = config.kl.coefficient > 0 and config.kl.place == "reward"
    batches = [batch for part in steps for batch in part]
    if not config.needs_critic and not kl_in_reward:
        return Credit(steps, {})
    costs = [_kl_costs(batch, config) if kl_in_reward else np.zeros(len(batch.tokens.rollout)) for batch in batches]
    _refuse_non_finite(rows, batches, costs, device)
    if config.needs_critic:
        filled, metrics = _critics(batches, costs, config, device)
    else:
        filled, metrics = _groups(rows, batches, costs, config, device), {}
    waiting = iter(filled)
    return Credit([[next(waiting) for _ in part] for part in steps], metrics)


def _refuse_non_finite(
    rows: Sequence[Row], batches: Sequence[Batch], costs: Sequence[np.ndarray], device: torch.device
) -> None:
    """Raises StepRefused, which names the first group with a non-finite KL or value: whitening would spread it to all
    groups."""
    bad = {row.group_id for batch, cost in zip(batches, costs, strict=True) for row in _non_finite(batch, cost)}
    first = min((k for k, row in enumerate(rows) if row.group_id in bad), default=len(rows))
    place = torch.tensor(first, dtype=torch.int64, device=device)
    dist.all_reduce(place, op=dist.ReduceOp.MIN)
    if int(place) < len(rows):
        raise StepRefused(f"non-finite KL or value in group {rows[int(place)].group_id}")


def _non_finite(batch: Batch, cost: np.ndarray) -> list[Row]:
    values = np.zeros_like(cost) if batch.values is None else _numpy(batch.values)
    after = np.zeros(len(batch.rows)) if batch.ends is None else _numpy(batch.ends)
    lengths = [row.num_sampled for row in batch.rows]
    owner = np.repeat(np.arange(len(lengths)), lengths)
    bad = set(owner[~np.isfinite(cost + values)].tolist()) | set(np.flatnonzero(~np.isfinite(after)).tolist())
    return [batch.rows[k] for k in sorted(bad)]


def _kl_costs(batch: Batch, config: ObjectiveConfig) -> np.ndarray:
    """lambda_KL times the KL of each sampled token at step start, (num_sampled,)."""
    own = batch.tokens.rollout if batch.recomputed is None else batch.recomputed
    if batch.tokens.reference is None:
        raise RuntimeError("a KL in the reward needs the reference's log-probabilities, and the micro-batch has none")
    estimate = kl_estimate(own, batch.tokens.reference, config.kl.estimator)
    return config.kl.coefficient * estimate.double().cpu().numpy()


def _critics(
    batches: Sequence[Batch], costs: Sequence[np.ndarray], config: ObjectiveConfig, device: torch.device
) -> tuple[list[Batch], dict[str, float]]:
    """GAE over each row; if configured, whitened by the moments over the tokens of positive weight of all ranks."""
    found = [_gae(batch, cost, config) for batch, cost in zip(batches, costs, strict=True)]
    kept = _joined([_numpy(batch.tokens.weights) for batch in batches]) > 0
    advantages, returns = _joined([a for a, _ in found])[kept], _joined([r for _, r in found])[kept]
    values = _joined([_numpy(batch.values) for batch in batches])[kept]
    metrics = _value_metrics(returns, values, device)
    moments = _moments(advantages, device) if config.gae.whiten else None
    filled = [
        _with(batch, whiten(a, moments) if moments else a, r) for batch, (a, r) in zip(batches, found, strict=True)
    ]
    return filled, metrics


def _gae(batch: Batch, costs: np.ndarray, config: ObjectiveConfig) -> tuple[np.ndarray, np.ndarray]:
    lengths = np.array([row.num_sampled for row in batch.rows], dtype=np.int64)
    rewards = _joined([row.rewards for row in batch.rows]) - costs
    return gae(rewards, _numpy(batch.values), lengths, _numpy(batch.ends), config.gae.gamma, config.gae.lam)


def _groups(
    rows: Sequence[Row],
    batches: Sequence[Batch],
    costs: Sequence[np.ndarray],
    config: ObjectiveConfig,
    device: torch.device,
) -> list[Batch]:
    """Group advantages of the returns minus the KL costs of a trajectory's tokens in all segments. The costs are summed
    over ranks, so that every rank has those of all trajectories."""
    place = {name: k for k, name in enumerate(dict.fromkeys(row.trajectory for row in rows))}
    charged, returns = np.zeros(len(place)), np.zeros(len(place))
    for row in rows:
        returns[place[row.trajectory]] += row.rewards.sum()
    for batch, cost in zip(batches, costs, strict=True):
        ends = np.cumsum([row.num_sampled for row in batch.rows])[:-1]
        for row, part in zip(batch.rows, np.split(cost, ends) if batch.rows else [], strict=True):
            charged[place[row.trajectory]] += part.sum()
    charged, advantages = _summed(charged, device), np.zeros(len(place))
    ids = np.array([group_id for group_id, _ in place])
    for group_id in dict.fromkeys(ids.tolist()):
        members = ids == group_id
        advantages[members] = group_advantages_with_costs(returns[members], charged[members], config.advantage)
    return [
        _with(batch, _joined([np.full(row.num_sampled, advantages[place[row.trajectory]]) for row in batch.rows]), None)
        for batch in batches
    ]


def _with(batch: Batch, advantages: np.ndarray, returns: np.ndarray | None) -> Batch:
    device = batch.tokens.rollout.device
    tokens = replace(batch.tokens, advantages=torch.from_numpy(advantages).float().to(device))
    return replace(
        batch, tokens=tokens, returns=None if returns is None else torch.from_numpy(returns).float().to(device)
    )


def _value_metrics(returns: np.ndarray, values: np.ndarray, device: torch.device) -> dict[str, float]:
    """Explained variance and mean value at step start, over all ranks."""
    left = returns - values
    parts = (len(returns), returns.sum(), np.square(returns).sum(), left.sum(), np.square(left).sum(), values.sum())
    n, total, squares, error, error_squares, value = _summed(np.array(parts, dtype=np.float64), device).tolist()
    return {
        "explained_variance": explained_variance((n, total, squares), (n, error, error_squares)),
        "value_mean": value / max(n, 1.0),
    }


def _moments(values: np.ndarray, device: torch.device) -> Moments:
    """Moments of the values over all ranks, computed in two passes. A collective."""
    count, total = _summed(np.array([float(len(values)), values.sum()]), device)
    mean = float(total / max(count, 1.0))
    (squares,) = _summed(np.array([np.square(values - mean).sum()]), device)
    largest = torch.tensor(float(np.abs(values).max(initial=0.0)), dtype=torch.float64, device=device)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return Moments(mean, float(np.sqrt(squares / max(count, 1.0))), float(largest))


def _summed(values: np.ndarray, device: torch.device) -> np.ndarray:
    """Sum over ranks. A collective."""
    tensor = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float64)).to(device)
    dist.all_reduce(tensor)
    return tensor.cpu().numpy()


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts).astype(np.float64) if parts else np.zeros(0)


def _numpy(tensor: torch.Tensor | None) -> np.ndarray:
    if tensor is None:
        raise RuntimeError("advantage=gae needs the critic's values at step start, and the micro-batch has none")
    return tensor.double().cpu().numpy()
