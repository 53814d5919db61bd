"""The reward function of `benchmarks.peer.learning`, with TRL's signature. Both trainers load this file as it is."""

from __future__ import annotations

from typing import Any

NUM_SPECIAL = 3
"""The smallest ids are those of the control tokens, and are not counted: the end of a turn is one."""


def share(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """The share of even ids in each completion, in [0, 1]; 0 for one without ids."""
    return [_share([token for token in ids if token >= NUM_SPECIAL]) for ids in completion_ids]


def _share(ids: list[int]) -> float:
    return sum(token % 2 == 0 for token in ids) / len(ids) if ids else 0.0
