"""The usual ways to split GPUs among learner, rollout workers and scorer, as settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

KEYS = ("learner.num_gpus", "rollout.num_gpus", "scorer.num_gpus")
ON_ONE = ((0.5, 0.3, 0.2), (0.4, 0.4, 0.2))
ON_ONE_UNSCORED = ((0.5, 0.5), (0.6, 0.4), (0.4, 0.6))
"""Shares of one GPU for the learner, a rollout worker and, if there is one, the scorer."""
SHARED = (1, 0.7, 0.3)
"""Shares where each actor has GPUs of its own but for the scorer, which is on the GPU of a rollout worker."""

MOST = 32
"""About so many numbers of rollout workers are tried."""


def of_each(numbers: Iterable[float]) -> dict[str, Any]:
    """The settings of these shares of the learner, a rollout worker and, if there is one, the scorer."""
    return dict(zip(KEYS, numbers, strict=False))


def shares(size: int, scored: bool, shared: bool) -> tuple[float, ...]:
    """GPUs of a learner's rank, of a rollout worker of `size` GPUs and, if it is `scored`, of the scorer, which is on
    the worker's if `shared`; for `of_each`."""
    return SHARED if shared else (1, size, *[1] * scored)


def on_several(gpus: int, size: int, scored: bool) -> Iterator[dict[str, Any]]:
    """Each number of rollout workers of `size` GPUs, with as many learner ranks as use all that is left, and, if it is
    `scored`, the scorer on a GPU of its own or on that of a worker. Of very many numbers some are left out."""
    for shared in (True, False) if scored and size == 1 else (False,):
        others = gpus - (scored and not shared)
        most = (others - 1) // size
        for count in range(1, most + 1, max(1, most // MOST)):
            yield {
                "learner.ranks": others - count * size,
                "rollout.count": count,
                **of_each(shares(size, scored, shared)),
            }


def first_split(gpus: int, size: int) -> dict[str, Any]:
    """The split that gives learner and rollout workers most equal parts; empty if there are too few GPUs."""

    def uneven(split: dict[str, Any]) -> tuple[float, float]:
        return abs(split["learner.ranks"] - gpus / 2), -split["learner.ranks"]

    return min(on_several(gpus, size, scored=True), key=uneven, default={})
