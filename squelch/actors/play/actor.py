"""Environment actor: the process around `EnvironmentPlayer`. Groups are packed in a thread.

| call | waits for | on time-out |
|---|---|---|
| creation | model folder, search indices, chunk by chunk | ValueError naming file and host (`process.shipping`) |
| `ready` | the environment's data and index | the caller's bound |
| `clusters` | environment calls, with the bound of each | the call fails |
| `play`, `evaluate` | the player's tokens and environment calls | the trajectory fails (`player.py`) |
| `intervene` | the same | the task is left out (`intervening.py`) |
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from squelch.actors.config import EnvironmentActorConfig
from squelch.actors.formats.choice import open_format
from squelch.actors.messages import Completion, GenerationRequest
from squelch.actors.play.generation import GenerationClient, GenerationFailed
from squelch.actors.play.intervening import Intervening
from squelch.actors.play.player import EnvironmentPlayer
from squelch.actors.process.shipping import Folder, copy_at, local, own_node
from squelch.actors.process.spans import Span
from squelch.actors.sampling import SamplingConfig
from squelch.envs.config import EnvironmentConfig
from squelch.envs.mixture import Mixture
from squelch.envs.registry import make
from squelch.kit.archive.rows import packed, to_table
from squelch.kit.base.cache import cache_folder
from squelch.kit.diagnosis.interventions import Intervention, LeftOut, Swap
from squelch.kit.process.progress_marks import Progress
from squelch.kit.records.records import Cluster, GroupSummary, Ticket, summarise

if TYPE_CHECKING:
    from ray.actor import ActorHandle


@dataclass(frozen=True)
class _HandlePort:
    """Port to a rollout worker through its Ray handle."""

    handle: Any

    async def submit(self, client: str, requests: list[GenerationRequest]) -> None:
        """As `RolloutWorker.submit`."""
        await self.handle.submit.remote(client, requests)

    async def collect(self, client: str, timeout_s: float) -> list[Completion]:
        """As `RolloutWorker.collect`."""
        return await self.handle.collect.remote(client, timeout_s)

    async def abort(self, client: str, request_ids: list[str]) -> None:
        """As `RolloutWorker.abort`."""
        await self.handle.abort.remote(client, request_ids)


def index_path(index: Folder) -> Path:
    """The path of the driver's index on this host: in its cache folder, or as the option `cache` set it."""
    path = Path(index.path)
    return cache_folder() / path.name if index.in_cache else path


class EnvironmentActor:
    """The actor, all of whose calls run in one event loop. The caller owns the groups that `play` returns, so finished
    groups survive this actor's death."""

    def __init__(
        self,
        name: str,
        model: Folder | Path | str,
        environment: EnvironmentConfig | Mixture,
        sampling: SamplingConfig,
        config: EnvironmentActorConfig,
        max_model_len: int,
        indices: Sequence[Folder] = (),
    ) -> None:
        """`indices`: the driver's search indices, which become available on this host under the same names."""
        for index in indices:
            copy_at(index, index_path(index))
        self._mixture = Mixture.of(environment)
        self._workers: dict[str, ActorHandle] = {}
        client = GenerationClient(name, self._port)
        chosen = open_format(local(model)), self._mixture, sampling, config, max_model_len, client.generate
        self._player = EnvironmentPlayer(*chosen)
        self._intervening = Intervening(*chosen, self._player.steps)

    def _port(self, worker: str) -> _HandlePort:
        if worker not in self._workers:
            known = ", ".join(sorted(self._workers)) or "none"
            raise GenerationFailed(f"this environment actor does not know the worker; it knows {known}")
        return _HandlePort(self._workers[worker])

    async def ready(self) -> bool:
        """True once the actor is up. ValueError if this host lacks data that an environment needs."""
        for entry in self._mixture.entries:
            try:
                await asyncio.to_thread(_try_environment, entry.environment)
            except ValueError as error:
                raise ValueError(f"environment {entry.name} on host {own_node()[1]}: {error}") from error
        gc.freeze()  # objects made by imports live forever, so collections need not visit them
        return True

    async def set_workers(self, workers: dict[str, ActorHandle]) -> None:
        """Replaces the rollout workers, by name."""
        self._workers = dict(workers)

    async def take_spans(self) -> list[Span]:
        """Intervals since the last call in which environments were stepped."""
        return self._player.steps.spans.take()

    def progress(self) -> Progress:
        """A mark for each environment call that ended; it is idle while it waits for tokens only."""
        return self._player.steps.progress()

    async def play(self, ticket: Ticket) -> tuple[GroupSummary, pa.Buffer]:
        """Plays a ticket; returns its group's summary and packed rows. Call it with `num_returns=2`, so that the rows
        stay in the object store when the summary is fetched."""
        group = await self._player.play(ticket)
        return await asyncio.to_thread(lambda: (summarise(group), packed(to_table(group))))

    async def evaluate(self, tickets: list[Ticket]) -> tuple[list[GroupSummary], pa.Table]:
        """Plays one trajectory per ticket, all at once; returns one summary per ticket and one table. Call it with
        `num_returns=2`."""
        groups = await asyncio.gather(*(self._player.play(replace(ticket, group_size=1)) for ticket in tickets))
        tables = await asyncio.to_thread(lambda: [to_table(group) for group in groups])
        return [summarise(group) for group in groups], pa.concat_tables(tables)

    async def clusters(self, tickets: list[Ticket]) -> dict[str, Cluster]:
        """The clusters of hard negatives of the tickets' tasks, by ticket id."""
        return await self._player.clusters(tickets)

    async def intervene(self, swaps: list[Swap]) -> list[Intervention | LeftOut]:
        """Plays the interventions of these tasks, all at once; in their order."""
        return list(await asyncio.gather(*map(self._intervening.play, swaps)))


def _try_environment(chosen: EnvironmentConfig) -> None:
    """Makes an environment; its notes ask a remote one whether it is there."""
    make(chosen.name, "train", chosen.options, chosen.prompt).notes()
