"""The usual ways to split GPUs among learner, rollout workers and scorer, as settings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

KEYS = ("learner.num_gpus", "rollout.num_gpus", "scorer.num_gpus")
ON_ONE = ((0.5, 0.3, 0.2), (0.4, 0.4, 0.2))
ON_ONE_UNSCORED = ((0.5, 0.5), (0.6, 0.4), (0.4, 0.6))
"""Shares of one GPU for the learner, a rollout worker and, if there is one, the scorer."""
SHARED = (1, 0.7, 0.3)
"""Shares where each actor has GPUs of its own but for the scorer, which is on the GPU of a rollout worker."""


def of_each(numbers: Iterable[float]) -> dict[str, Any]:
    """The settings of these shares of the learner, a rollout worker and, if there is one, the scorer."""
    return dict(zip(KEYS, numbers, strict=False))


def shares(size: int, scored: bool, shared: bool) -> tuple[float, ...]:
    """GPUs of a learner's rank, of a rollout worker of `size` GPUs and, if it is `scored`, of the scorer, which is on
    the worker's if `shared`; for `of_each`."""
    return SHARED if shared else (1, size, *[1] * scored)


def on_several(ranks: int, others: int, size: int, scored: bool, shared: bool) -> dict[str, Any]:
    """`ranks` GPUs for the learner, and `others` for rollout workers of `size` GPUs and the scorer, if it is `scored`:
    on the GPU of a worker if `shared`. `rollout.count` may be 0."""
    count = (others - (scored and not shared)) // size
    return {"learner.ranks": ranks, "rollout.count": count, **of_each(shares(size, scored, shared))}
