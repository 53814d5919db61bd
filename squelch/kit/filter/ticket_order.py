"""The order of tickets, which breaks ties between scores, and the order of the most recent groups. Pure."""

from __future__ import annotations

import bisect
import math
import re
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np


@lru_cache(maxsize=8192)
def ticket_key(group_id: str) -> tuple[str | int, ...]:
    """Sort key of ticket ids that compares numbers in them by value: `7-10` comes after `7-9`."""
    return tuple(int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", group_id))


def ticket_order(group_ids: Sequence[str]) -> np.ndarray:
    """(n,) rank of each id in the order of tickets."""
    ranks = np.empty(len(group_ids), dtype=np.int64)
    ranks[sorted(range(len(group_ids)), key=lambda i: ticket_key(group_ids[i]))] = np.arange(len(group_ids))
    return ranks


class RecentGroups:
    """The last `size` groups of any step: their scores and their ticket order. The order is updated incrementally, so
    that a new group needs no sort."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._ids: deque[str] = deque()
        self._tickets: list[tuple[str | int, ...]] = []  # sorted; equal ones in order of arrival
        self._scores, self._order = np.empty(size), np.empty(size, dtype=np.int64)

    @property
    def scores(self) -> np.ndarray:
        """(n,) float64 in order of arrival, NaN for refused groups."""
        return self._scores[: len(self._ids)]

    @property
    def order(self) -> np.ndarray:
        """(n,) `ticket_order` of the same groups."""
        return self._order[: len(self._ids)]

    def add(self, group_id: str, score: float) -> None:
        """Adds a group; removes the oldest if there are `size` groups."""
        if len(self._ids) == self._size:
            self._drop_oldest()
        ticket, order, last = ticket_key(group_id), self.order, len(self._ids)
        rank = bisect.bisect_right(self._tickets, ticket)
        self._tickets.insert(rank, ticket)
        order += order >= rank
        self._ids.append(group_id)
        self._scores[last], self._order[last] = score, rank

    def _drop_oldest(self) -> None:
        rank = bisect.bisect_left(self._tickets, ticket_key(self._ids.popleft()))
        del self._tickets[rank]
        self._scores[:-1] = self._scores[1:]
        self._order[:-1] = self._order[1:]
        order = self.order
        order -= order > rank

    def state(self) -> list[list[Any]]:
        """[id, score or None] of each group, oldest first."""
        return [
            [group_id, score if math.isfinite(score) else None]
            for group_id, score in zip(self._ids, self.scores.tolist(), strict=True)
        ]
