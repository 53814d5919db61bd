"""The objects that the stand-ins' processes serve: made-up play for many environment actors, and the real filter.

Each is served either by a process of `tests.stand_ins.channel` or by a Ray actor.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from squelch.actors.filter.service import FilterService
from squelch.actors.messages import UpdateReport, WeightBundle
from squelch.kit.archive.rows import packed, to_table
from squelch.kit.filter.settings import FilterConfig
from squelch.kit.process.progress_marks import IDLE, Progress
from squelch.kit.records.records import Group, GroupSummary, Ticket, Trajectory, Turn, summarise

PROMPT_TOKENS, SAMPLED_TOKENS = 40, 24


class Host:
    """Answers for many environment actors and rollout workers. `delay_s`: mean seconds in which a group is played."""

    def __init__(self, seed: int, delay_s: float) -> None:
        self.delay_s, self.version = delay_s, -1
        self._random = random.Random(seed)
        self._rows: dict[str, pa.Buffer] = {}

    async def ready(self) -> bool:
        """True once the process is up."""
        return True

    async def update_weights(self, name: str, bundle: WeightBundle) -> UpdateReport:
        """Notes the version."""
        self.version = bundle.version
        return UpdateReport(name, bundle.version, bundle.checksum, 0.0, 0.0, 0.0, 0.0, 0.0)

    async def live(self) -> None:
        """Never returns."""
        await asyncio.Event().wait()

    async def progress(self) -> Progress:
        """It has nothing that could be late."""
        return IDLE

    async def take_spans(self) -> list[Any]:
        """No span: nothing was worked."""
        return []

    async def play(self, ticket: Ticket) -> tuple[GroupSummary, pa.Buffer]:
        """The summary and the packed rows of a group of made-up trajectories, after a random delay."""
        await asyncio.sleep(self._random.uniform(0.0, 2.0 * self.delay_s))
        return self._made_up(ticket, [SAMPLED_TOKENS] * ticket.group_size)

    def _made_up(self, ticket: Ticket, lengths: Sequence[int]) -> tuple[GroupSummary, pa.Buffer]:
        """The summary and the packed rows of a group whose trajectories have these numbers of sampled tokens."""
        members = [self._trajectory(index, sampled) for index, sampled in enumerate(lengths)]
        group = Group(ticket, f"task-{ticket.task.seed}", members)
        return summarise(group), packed(to_table(group))

    async def play_here(self, ticket: Ticket) -> GroupSummary:
        """As `play`; the rows stay in this process until they are fetched, as in an object store."""
        summary, self._rows[ticket.ticket_id] = await self.play(ticket)
        return summary

    async def fetch(self, ids: list[str]) -> list[pa.Buffer]:
        """The packed rows of these groups, which are then forgotten."""
        return [self._rows.pop(ticket_id) for ticket_id in ids]

    def _trajectory(self, index: int, sampled: int) -> Trajectory:
        reward, length = float(self._random.random() < 0.5), PROMPT_TOKENS + sampled
        mask = np.arange(length) >= PROMPT_TOKENS
        turn = Turn(
            PROMPT_TOKENS, length, PROMPT_TOKENS, length - 4, reward, 0.0, True, False, 1, self.version, self.version
        )
        tokens = np.arange(length, dtype=np.int32)
        return Trajectory(index, tokens, mask, np.full(length, -0.5, np.float32), [turn], reward > 0, False)


class FilterHost:
    """The filter's service behind asynchronous methods."""

    def __init__(self, config: FilterConfig) -> None:
        self._service = FilterService(config)

    def __getattr__(self, method: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        async def call(*arguments: Any) -> Any:
            return getattr(self._service, method)(*arguments)

        return call
