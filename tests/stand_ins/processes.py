"""Actors that cost almost nothing, for `benchmarks.control_plane`: they neither generate nor train.

    party               stand-in                                          process
    environment actor   an object; a group of made-up tokens after a delay  one of two of `Host`
    rollout worker      an object; answers every call                       one of the same two
    learner             `SleepingLearner`: sleeps, reports an update        the driver's
    filter service      the real window                                     its own

The stand-ins reach their processes by `tests.stand_ins.channel`, one message a tick and process, so that the
figures are those of the control plane and not of a transport. `tests.stand_ins.behind_ray` reaches the same
objects by one Ray call each, as a run does.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from squelch.actors.archive.rows import unpacked
from squelch.actors.filter.decisions import StepDecision
from squelch.actors.messages import GroupMember, Imitation, StepReport, UpdateReport, WeightBundle
from squelch.actors.process.progress_marks import Progress
from squelch.actors.process.spans import Span
from squelch.actors.records import GroupSummary, Ticket
from squelch.cluster.config import RunConfig
from squelch.cluster.control.protocols import ControlEndpoint, Filter, Learner, Payload, Player, Scorer, Worker
from squelch.cluster.control.scaling import Kind
from squelch.cluster.fleet.waiting import bounded
from squelch.learner.batching import Row
from squelch.learner.decomposition.statistics import Decomposition
from tests.stand_ins.channel import Caller, Client
from tests.stand_ins.hosts import FilterHost, Host

HOSTS = 2
"""Processes that answer for all environment actors and rollout workers."""


class _Supervised:
    """What supervision asks of every party."""

    host: Caller

    async def lost(self) -> NoReturn:
        """It never dies."""
        await asyncio.Event().wait()
        raise AssertionError

    async def progress(self) -> Progress:
        """It answers."""
        return await self.host.call("progress")


class _Member(_Supervised):
    """One of many members of a host."""

    def __init__(self, host: Caller, name: str) -> None:
        self.host, self.name = host, name

    async def ready(self) -> object:
        """Returns once the process is up."""
        return await self.host.call("ready")

    async def take_spans(self) -> list[Span]:
        """Nothing was worked."""
        return await self.host.call("take_spans")

    async def stop(self) -> object:
        """Nothing is held."""
        return None

    def kill(self) -> None:
        """Nothing: the host's process serves others."""


class StandInPlayer(_Member):
    """An environment actor."""

    async def set_workers(self, workers: Mapping[str, Worker]) -> None:
        """It needs no workers."""

    async def play(self, ticket: Ticket) -> tuple[GroupSummary, Payload]:
        """A made-up group; its payload is (host, ticket id)."""
        return await self.host.call("play_here", ticket), (self.host, ticket.ticket_id)

    async def evaluate(self, tickets: list[Ticket]) -> list[GroupSummary]:
        """The benchmark never validates."""
        raise NotImplementedError


class Groupless:
    """A rollout worker in no weight group: versions reach it through the object store."""

    async def join_group(self, member: GroupMember) -> None:
        """The benchmark's configuration broadcasts no weights."""
        raise NotImplementedError

    async def receive_weights(self, bundle: WeightBundle) -> UpdateReport:
        """The benchmark's configuration broadcasts no weights."""
        raise NotImplementedError


class StandInWorker(Groupless, _Member):
    """A rollout worker."""

    async def update_weights(self, bundle: WeightBundle) -> UpdateReport:
        """Notes the version."""
        return await self.host.call("update_weights", self.name, bundle)

    async def health(self, timeout_s: float) -> object:
        """It is always well."""
        return None


class StandInFilter(_Supervised):
    """The real filter in a process of its own."""

    def __init__(self, host: Caller) -> None:
        self.host = host

    async def admit(self, summaries: list[GroupSummary]) -> object:
        """As the service."""
        return await self.host.call("admit", summaries)

    async def close(self, step: int, final: bool, target: int) -> StepDecision:
        """As the service."""
        return await self.host.call("close", step, final, target)

    async def state(self, steps: Collection[int] | None = None) -> dict[str, Any]:
        """As the service."""
        return await self.host.call("state", steps)

    async def restore(self, state: dict[str, Any]) -> object:
        """As the service."""
        return await self.host.call("restore", state)

    def kill(self) -> None:
        """The process ends with the benchmark."""


class SleepingLearner:
    """A learner that sleeps `train_s` seconds a step."""

    ranks = 1

    def __init__(self, train_s: float) -> None:
        self.train_s = train_s

    async def start(self) -> None:
        """It is ready at once."""

    async def lost(self) -> NoReturn:
        """It never dies."""
        await asyncio.Event().wait()
        raise AssertionError

    async def progress(self, timeout_s: float) -> list[Progress | None]:
        """It has no micro-batches."""
        return [Progress(0, 0.0)]

    async def train_step(self, step: int, payloads: list[Payload], ids: list[str], loss_scale: float) -> StepReport:
        """An update without work."""
        await asyncio.sleep(self.train_s)
        return StepReport(step, True, 1, len(ids), len(ids))

    async def imitate(self, step: int, rows: Sequence[Row]) -> Imitation:
        """The benchmark's configuration has no warm-up."""
        raise NotImplementedError

    async def imitation_loss(self, rows: Sequence[Row]) -> float:
        """The benchmark's configuration has no warm-up."""
        raise NotImplementedError

    async def decompose(self, payloads: list[Payload], ids: list[str]) -> Decomposition:
        """The benchmark's configuration never asks for it."""
        raise NotImplementedError

    async def publish(self, version: int, dtype: str) -> WeightBundle:
        """A bundle without weights."""
        return WeightBundle(version, (), f"version-{version}", np.zeros(1, np.int32), np.zeros(0, np.float32))

    async def open_group(self) -> tuple[str, int]:
        """The benchmark's configuration broadcasts no weights."""
        raise NotImplementedError

    async def join_group(self, member: GroupMember) -> str:
        """The benchmark's configuration broadcasts no weights."""
        raise NotImplementedError

    async def send(self, dtype: str, timeout_s: float) -> str:
        """The benchmark's configuration broadcasts no weights."""
        raise NotImplementedError

    async def save(self, path: Path, loop: Mapping[str, Any]) -> None:
        """Writes the loop's state only."""
        path.mkdir(parents=True, exist_ok=True)
        (path / "loop.json").write_text(json.dumps(loop))

    async def load(self, path: Path) -> dict[str, Any]:
        """The benchmark resumes no run."""
        raise NotImplementedError

    async def export(self, path: Path) -> None:
        """It has no policy."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Nothing runs."""

    def kill(self) -> None:
        """Nothing runs."""


class StandInPayloads:
    """The rows, which the hosts keep until they are fetched."""

    def put(self, table: pa.Table) -> Payload:
        """The benchmark's groups are all played."""
        raise NotImplementedError

    async def fetch(self, payloads: list[Payload], timeout_s: float) -> list[pa.Table]:
        """The rows of each payload, in order; one message a host."""
        ids: dict[Caller, list[str]] = {}
        for host, ticket_id in payloads:
            ids.setdefault(host, []).append(ticket_id)
        calls = [bounded(host.call("fetch", wanted), timeout_s) for host, wanted in ids.items()]
        fetched = await asyncio.gather(*calls)
        rows = dict(zip(itertools.chain(*ids.values()), itertools.chain(*fetched), strict=True))
        return [unpacked(rows[ticket_id]) for _, ticket_id in payloads]


class NoCluster:
    """The part of `Actors` that is about the cluster, for parties that need none: there is always room, and no node is
    added or taken away."""

    def control_endpoint(self) -> ControlEndpoint:
        """Nobody scales the benchmark's run."""
        raise NotImplementedError

    async def lacking(self, counts: Mapping[Kind, int]) -> str | None:
        """Nothing is lacking."""
        return None

    async def settled(self) -> None:
        """No autoscaler was asked."""

    async def leaving(self) -> Mapping[str, float]:
        """No node is taken away."""
        return {}

    async def room_for_ranks(self) -> int:
        """One rank has room."""
        return 1

    def room(self) -> str:
        """Stand-ins need no resources."""
        return ""


class StandIns(NoCluster):
    """Creates stand-ins, of which the i-th of a kind belongs to host i, modulo their number. `connect` must be awaited
    first, and `end` ends the processes."""

    def __init__(self, hosts: Sequence[Caller], filter_host: Caller, train_s: float) -> None:
        self.payloads = StandInPayloads()
        self.train_s = train_s
        self._hosts, self._filter = hosts, filter_host

    async def connect(self) -> None:
        """Connects to every process."""
        for client in (*self._hosts, self._filter):
            await client.connect()

    def end(self) -> None:
        """Ends every process."""
        for client in (*self._hosts, self._filter):
            client.kill()

    def _host(self, name: str) -> Caller:
        return self._hosts[int(name.rpartition("-")[2]) % len(self._hosts)]

    def player(self, name: str) -> Player:
        """One of many environment actors."""
        return StandInPlayer(self._host(name), name)

    def worker(self, name: str) -> Worker:
        """One of many rollout workers."""
        return StandInWorker(self._host(name), name)

    def filter(self) -> Filter:
        """The filter service."""
        return StandInFilter(self._filter)

    def scorer(self) -> Scorer:
        """The benchmark's configuration has none."""
        raise NotImplementedError

    def learner(self, ranks: int) -> Learner:
        """The learner that sleeps."""
        return SleepingLearner(self.train_s)


class ProcessStandIns(StandIns):
    """Stand-ins whose hosts and filter are processes of their own."""

    def __init__(self, config: RunConfig, delay_s: float, train_s: float) -> None:
        self._processes = [Client(FilterHost, config.filter), *(Client(Host, seed, delay_s) for seed in range(HOSTS))]
        super().__init__(self._processes[1:], self._processes[0], train_s)

    async def pids(self) -> tuple[int, list[int]]:
        """The ids of the filter's process and of the hosts'."""
        service, *hosts = (process.pid for process in self._processes)
        return service, hosts
