"""Actors that sleep instead of generating and training, for `benchmarks.overlap`.

    actor               stand-in
    rollout worker      an engine at capacity: it samples one group after another, each for a random time
    environment actor   hands its group to the worker that the ticket names, and makes up the group's rows
    learner             sleeps for a random time a step, then for the publication
    filter service      the real window, in this process

Sleeping costs no processor time, so that the metrics are those of the schedule also on a busy machine.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa

from squelch.actors.messages import StepReport, StepTerms, UpdateReport, WeightBundle
from squelch.actors.process.spans import Span, Spans
from squelch.cluster.config import RunConfig
from squelch.cluster.control.calls import Payload
from squelch.cluster.control.client import Client
from squelch.cluster.control.rank_client import LearnerClient
from squelch.kit.archive.rows import packed, unpacked
from squelch.kit.process.progress_marks import IDLE, Progress
from squelch.kit.records.records import GroupSummary, Ticket
from tests.fakes.transport import Handle, client, learner_client
from tests.stand_ins.hosts import FilterHost, Host
from tests.stand_ins.processes import NoCluster, SleepingLearner


@dataclass(frozen=True)
class Times:
    """Mean seconds of the parts of a step."""

    generate_s: float
    """One worker alone samples all groups of a step."""
    train_s: float
    publish_s: float
    """The learner gathers and stores the weights."""
    load_s: float
    """A rollout worker loads them; it samples nothing meanwhile."""
    save_s: float = 0.0
    """The learner writes a checkpoint."""


class Immortal:
    """What supervision asks of every actor."""

    async def live(self) -> NoReturn:
        """It never dies."""
        await asyncio.Event().wait()
        raise AssertionError

    async def progress(self) -> Progress:
        """It answers."""
        return IDLE

    def kill(self) -> None:
        """Nothing runs."""


class PacedWorker(Immortal):
    """A rollout worker that samples one group at a time. While it loads weights it samples nothing."""

    def __init__(self, name: str, load_s: float) -> None:
        self.name, self.load_s, self.version = name, load_s, -1
        self.spans = Spans()
        self._engine = asyncio.Lock()

    async def sample(self, seconds: float) -> None:
        """Samples one group."""
        async with self._engine:
            self.spans.begin()
            try:
                await asyncio.sleep(seconds)
            finally:
                self.spans.end()

    async def ready(self) -> object:
        """It is ready at once."""
        return None

    async def update_weights(self, bundle: WeightBundle) -> UpdateReport:
        """Loads a version between two groups."""
        async with self._engine:
            await asyncio.sleep(self.load_s)
        self.version = bundle.version
        return UpdateReport(self.name, bundle.version, bundle.checksum, 0.0, 0.0, self.load_s, self.load_s, 0.0)

    async def health(self, timeout_s: float) -> object:
        """It is always well."""
        return None

    async def take_spans(self) -> Sequence[Span]:
        """The intervals in which it sampled."""
        return self.spans.take()

    async def stop(self) -> object:
        """Nothing is held."""
        return None


class Actor(Immortal):
    """An environment actor, whose own work takes no time."""

    def __init__(self, seconds: float, seed: int) -> None:
        self.seconds = seconds
        self._workers: dict[str, PacedWorker] = {}
        self._rows, self._chance = Host(seed, 0.0), random.Random(seed)

    async def ready(self) -> object:
        """It is ready at once."""
        return None

    async def set_workers(self, handles: Mapping[str, Handle]) -> None:
        """Replaces the workers that it knows."""
        self._workers = {name: handle.actor for name, handle in handles.items()}

    async def play(self, ticket: Ticket) -> tuple[GroupSummary, Payload]:
        """A made-up group; the time that sampling it takes varies by half."""
        worker = self._workers[ticket.worker]
        self._rows.version = worker.version
        await worker.sample(self.seconds * self._chance.uniform(0.5, 1.5))
        return await self._rows.play(ticket)

    async def take_spans(self) -> Sequence[Span]:
        """Its work takes no time."""
        return []


class PacedLearner(SleepingLearner):
    """A learner whose steps vary by a fifth."""

    def __init__(self, times: Times) -> None:
        super().__init__(times.train_s)
        self.publish_s, self.save_s, self._chance = times.publish_s, times.save_s, random.Random(1)

    async def train_step(self, step: int, payloads: list[Payload], ids: list[str], terms: StepTerms) -> StepReport:
        """An update without work."""
        seconds = self.train_s * self._chance.uniform(0.8, 1.2)
        await asyncio.sleep(seconds)
        return StepReport(step, True, 1, len(ids), len(ids), seconds={"forward_backward": seconds})

    async def publish(self, version: int, dtype: str) -> WeightBundle:
        """A bundle without weights."""
        await asyncio.sleep(self.publish_s)
        return await super().publish(version, dtype)

    async def save(self, path: Path, loop: Mapping[str, Any]) -> dict[str, float]:
        """Writes the loop's state only, at its pace."""
        await asyncio.sleep(self.save_s)
        return await super().save(path, loop)


class InProcessFilter(FilterHost, Immortal):
    """The real window."""

    async def state(self, steps: Collection[int] | None = None) -> dict[str, Any]:
        """As `FilterWindow.state`."""
        return await super().state(steps)


class Rows:
    """The packed rows themselves are the payloads."""

    def put(self, table: pa.Table) -> pa.Buffer:
        """The packed table."""
        return packed(table)

    async def fetch(self, payloads: list[pa.Buffer], timeout_s: float) -> list[pa.Table]:
        """The tables."""
        return [unpacked(rows) for rows in payloads]


class PacedActors(NoCluster):
    """Creates the stand-ins."""

    def __init__(self, config: RunConfig, times: Times) -> None:
        self.config, self.times, self.payloads = config, times, Rows()
        self._made = 0

    def player(self, name: str) -> Client:
        """An environment actor."""
        self._made += 1
        return client(Actor(self.times.generate_s / self.config.loop.prompts, self._made), self.config)

    def worker(self, name: str) -> Client:
        """A rollout worker."""
        return client(PacedWorker(name, self.times.load_s), self.config)

    def filter(self) -> Client:
        """The filter service."""
        return client(InProcessFilter(self.config.filter), self.config)

    def scorer(self) -> Client:
        """The benchmark's configuration has none."""
        raise NotImplementedError

    def learner(self, ranks: int) -> LearnerClient:
        """The learner."""
        return learner_client(PacedLearner(self.times), 1, self.config)
