"""Trajectories of random tokens, and the arithmetic operations of a training step on them.

Imports nothing that a run alone needs, so that `benchmarks.gpu` runs with few packages.
"""

from __future__ import annotations

import numpy as np

from squelch.kit.packed.packing import pack
from squelch.kit.records.records import Trajectory, Turn
from squelch.learner import batching
from squelch.learner.trainer import Trainer

Groups = list[tuple[str, list[Trajectory]]]


def random_groups(num_groups: int, group_size: int, prompt: int, answer: int, vocabulary: int) -> Groups:
    """Groups of random tokens: one prompt per group, one answer per member; lengths in tokens."""
    rng, groups = np.random.default_rng(0), []
    for task in range(num_groups):
        fed = rng.integers(2, vocabulary, prompt)
        ids = [np.concatenate([fed, rng.integers(2, vocabulary, answer)]).astype(np.int32) for _ in range(group_size)]
        mask = np.arange(prompt + answer) >= prompt
        members = [trajectory(rng, member, row, mask) for member, row in enumerate(ids)]
        groups.append((f"{task:03d}", members))
    return groups


def trajectory(rng: np.random.Generator, index: int, ids: np.ndarray, mask: np.ndarray) -> Trajectory:
    """A trajectory of one turn with these tokens, sampled where `mask` is true, and a random reward."""
    sampled = np.flatnonzero(mask)
    start, end = int(sampled[0]), int(sampled[-1]) + 1
    turn = Turn(start, end, start, end, float(rng.random() < 0.4), 0.0, True, False, 1, 0, 0)
    log_probs = np.where(mask, -0.5, 0).astype(np.float32)
    return Trajectory(index, ids, mask, log_probs, [turn], False, False)


def operations(trainer: Trainer, groups: Groups, step: int, padded: bool) -> float:
    """Operations of the products of one training step, attention's included (`learner.arithmetic`), padding too."""
    rows = batching.to_rows(groups, trainer.config.objective)
    plan = trainer.plan(rows, trainer.config.minibatches, step)
    total = 0.0
    for part in plan:
        for micro in part.micro_batches[0]:
            chosen = [rows[i] for i in micro]
            tokens, pairs = fed([row.token_ids for row in chosen], padded)
            total += sum(trainer.arithmetic.trained(tokens, sum(row.num_sampled for row in chosen), pairs))
    return total


def tokens_fed(trainer: Trainer, groups: Groups) -> int:
    """Tokens that the first packed training step feeds."""
    rows = batching.to_rows(groups, trainer.config.objective)
    plan = trainer.plan(rows, trainer.config.minibatches, 0)
    micro_batches = [micro for part in plan for micro in part.micro_batches[0]]
    return sum(fed([rows[i].token_ids for i in micro], False)[0] for micro in micro_batches)


def fed(rows: list[np.ndarray], padded: bool) -> tuple[int, int]:
    """(tokens fed, pairs attended)."""
    if padded:
        width = max(map(len, rows))
        return len(rows) * width, len(rows) * width * (width + 1) // 2
    forest = pack(rows)
    return forest.num_tokens, forest.pairs()
