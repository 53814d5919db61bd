"""Gradients of each half of each group, for the figure q of a kept share (`learner.decomposition.alignment`).

One pass over the groups serves every choice of groups: of each half of a group (`statistics.split_halves`) the unbiased
task gradient and the regularisers' gradient are sketched, and the inner products of all sketches are returned.

Invariants:

- Nothing is updated: parameters, optimizer state and counts do not change.
- A collective: every rank passes the same groups and runs the same passes. Besides the model a rank holds at most
  `statistics.HALVES_GRADIENTS` gradients of its own shards, and a sketch for each gradient.
- The ratio is 1 at the policy's own weights, as in the decomposition.

Waiting: each rank waits for the other ranks, in collectives, at most the process group's time-out.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from squelch.actors.records import Trajectory
from squelch.learner import batching
from squelch.learner.batching import Groups, Row
from squelch.learner.config import ObjectiveConfig
from squelch.learner.decomposition.alignment import HalfGram
from squelch.learner.decomposition.decompose import score_objective
from squelch.learner.decomposition.sketches import WIDTH, Sketcher
from squelch.learner.decomposition.statistics import half_weights, split_halves
from squelch.learner.objective.advantages import RELATIVE_ZERO
from squelch.learner.objective.components import ADVANTAGES
from squelch.learner.policy.model import local
from squelch.learner.trainer import Trainer


def half_gram(trainer: Trainer, groups: Groups, width: int = WIDTH) -> HalfGram:
    """Inner products of the half gradients of the groups that can be split, at the trainer's weights. A collective.

    Raises ValueError for non-finite groups.
    """
    if reason := batching.non_finite(groups):
        raise ValueError(reason)
    own = trainer.config.objective
    alive = [(gid, members) for gid, members in batching.survivors(groups) if _splits(gid, members)]
    trained = [p for p in trainer.policy.parameters() if p.requires_grad]
    sketcher = Sketcher([local(p).numel() for p in trained], trainer.rank, local(trained[0]).device, width)
    sketches: list[list[Tensor]] = [[] for _ in range(4)]
    scales: list[tuple[float, float]] = []
    for group_id, members in alive:
        first = split_halves(group_id, len(members))
        assert first is not None, "groups that cannot be split are left out"
        ranked = batching.ranked_returns(members, own)
        for place, half in enumerate((first, ~first)):
            rows = _rows(group_id, members, half, own)
            sketches[place].append(_task(trainer, sketcher, rows, half_weights(ranked, half), members))
            sketches[2 + place].append(_regulariser(trainer, sketcher, rows))
        scales.append((trained_scale(ranked[first], own), trained_scale(ranked[~first], own)))
    found = [one for kind in sketches for one in kind]
    stacked = torch.stack(found).numpy() if found else np.zeros((0, width))
    return HalfGram(tuple(gid for gid, _ in alive), np.array(scales).reshape(-1, 2).T, stacked @ stacked.T)


def trained_scale(ranked: np.ndarray, own: ObjectiveConfig) -> float:
    """The factor from a half's unbiased task gradient to its mean gradient with the advantages that are trained on; 0
    if all advantages are 0. `ranked`: the half's returns, at least two."""
    std, count = float(ranked.std(ddof=1)), len(ranked)
    if std <= RELATIVE_ZERO * max(1.0, float(np.abs(ranked).max())):
        return 0.0
    return (count - 1) / count / (std if ADVANTAGES[own.advantage].divides_by_std else 1.0)


def _splits(group_id: str, members: Sequence[Trajectory]) -> bool:
    first = split_halves(group_id, len(members))
    return first is not None and any(t.loss_mask.any() for t in members)


def _rows(group_id: str, members: Sequence[Trajectory], half: np.ndarray, own: ObjectiveConfig) -> list[Row]:
    """Rows of a half's trajectories that have sampled tokens."""
    chosen = [t for t, inside in zip(members, half.tolist(), strict=True) if inside]
    return batching.to_rows([(group_id, chosen)], own)


def _task(
    trainer: Trainer, sketcher: Sketcher, rows: Sequence[Row], weights: np.ndarray, members: Sequence[Trajectory]
) -> Tensor:
    """The sketch of the loss gradient -sum_k w_k s_k of one half; zeros without a pass if all weights are 0."""
    by_index = {t.index: float(w) for t, w in zip(members, weights.tolist(), strict=True)}
    weighted = [replace(row, advantage=len(rows) * by_index[row.index]) for row in rows]
    if not any(row.advantage for row in weighted):
        return torch.zeros(sketcher.width, dtype=torch.float64)
    return sketcher(trainer.row_gradients(weighted, score_objective(trainer.config.objective)))


def _regulariser(trainer: Trainer, sketcher: Sketcher, rows: Sequence[Row]) -> Tensor:
    """The sketch of the gradient of the KL and entropy terms over one half; zeros without a pass if there are none."""
    own = trainer.config.objective
    if not rows or (own.kl_in_loss <= 0 and own.entropy_coefficient <= 0):
        return torch.zeros(sketcher.width, dtype=torch.float64)
    plain = score_objective(own).model_copy(update={"anchor": "rollout"})
    kl = {"kl": own.kl} if own.kl_in_loss > 0 else {}
    objective = plain.model_copy(update={**kl, "entropy_coefficient": own.entropy_coefficient})
    return sketcher(trainer.row_gradients([replace(row, advantage=0.0) for row in rows], objective))
