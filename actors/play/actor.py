"""Environment actor: the Ray shell around `EnvironmentPlayer`.

| waits for | who unblocks it | on time-out |
|---|---|---|
| `play` and `evaluate` wait for the player | tokens and environment calls | the trajectory fails (`player.py`) |
"""

from __future__ import annotations

import asyncio
import gc
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from actors.config import EnvironmentActorConfig, SamplingConfig
from actors.messages import Completion, GenerationRequest
from actors.play.codec import ChatCodec
from actors.play.generation import GenerationClient, GenerationFailed
from actors.play.player import EnvironmentPlayer
from actors.process.spans import Span
from actors.records import GroupSummary, Ticket, summarise, to_table
from envs.config import EnvironmentConfig

if TYPE_CHECKING:
    from ray.actor import ActorHandle


@dataclass(frozen=True)
class _HandlePort:
    """A rollout worker reached through its Ray handle."""

    handle: Any

    async def submit(self, client: str, requests: list[GenerationRequest]) -> None:
        await self.handle.submit.remote(client, requests)

    async def collect(self, client: str, timeout_s: float) -> list[Completion]:
        return await self.handle.collect.remote(client, timeout_s)

    async def abort(self, client: str, request_ids: list[str]) -> None:
        await self.handle.abort.remote(client, request_ids)


class EnvironmentActor:
    """The Ray actor (asynchronous). The caller owns what `play` returns: this actor's death loses no finished group."""

    def __init__(
        self,
        name: str,
        model_dir: str | Path,
        environment: EnvironmentConfig,
        sampling: SamplingConfig,
        config: EnvironmentActorConfig,
        max_model_len: int,
    ) -> None:
        self._workers: dict[str, ActorHandle] = {}
        client = GenerationClient(name, self._port)
        self._player = EnvironmentPlayer(
            ChatCodec(model_dir), environment, sampling, config, max_model_len, client.generate
        )

    def _port(self, worker: str) -> _HandlePort:
        if worker not in self._workers:
            raise GenerationFailed(f"not known here; known are {', '.join(sorted(self._workers)) or 'none'}")
        return _HandlePort(self._workers[worker])

    async def ready(self) -> bool:
        """True once the actor is up."""
        gc.freeze()  # what imports made is never garbage: collections need not walk it
        return True

    async def set_workers(self, workers: dict[str, ActorHandle]) -> None:
        """From now on these are the rollout workers."""
        self._workers = dict(workers)

    async def take_spans(self) -> list[Span]:
        """When environments were stepped, since the last call."""
        return self._player.steps.spans.take()

    async def play(self, ticket: Ticket) -> tuple[GroupSummary, pa.Table]:
        """Call with `num_returns=2`: the summary travels, the table stays in the object store."""
        group = await self._player.play(ticket)
        return summarise(group), to_table(group)

    async def evaluate(self, tickets: list[Ticket]) -> tuple[list[GroupSummary], pa.Table]:
        """One trajectory a ticket, all at once; one summary a ticket, one table. Call with `num_returns=2`."""
        groups = await asyncio.gather(*(self._player.play(replace(ticket, group_size=1)) for ticket in tickets))
        tables = [to_table(group) for group in groups]
        return [summarise(group) for group in groups], pa.concat_tables(tables)
