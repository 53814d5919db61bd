"""Actors that cost almost nothing, for `benchmarks.control_plane`: they neither generate nor train.

    actor               stand-in                                          process
    environment actor   an object; a group of made-up tokens after a delay  one of two of `Host`
    rollout worker      an object; answers every call                       one of the same two
    learner             `SleepingLearner`: sleeps, reports an update        the driver's
    filter service      the real window                                     its own

The stand-ins reach their processes by `tests.stand_ins.channel`, one message a tick and process, so that the
metrics are those of the control plane and not of a transport. `tests.stand_ins.behind_ray` reaches the same
objects by one Ray call each, as a run does.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from squelch.actors.messages import StepReport, StepTerms, UpdateReport, WeightBundle
from squelch.cluster.config import RunConfig
from squelch.cluster.control.calls import Payload
from squelch.cluster.control.client import Client
from squelch.cluster.control.rank_client import LearnerClient
from squelch.cluster.control.scaling import Kind
from squelch.cluster.fleet.waiting import bounded
from squelch.kit.archive.rows import unpacked
from squelch.kit.base.disk import partial_path
from squelch.kit.process.progress_marks import Progress
from squelch.kit.records.records import GroupSummary, Ticket
from squelch.learner.network import LOOPBACK, Endpoint, RankProcess
from tests.fakes.transport import NODE, client, learner_client
from tests.stand_ins import channel
from tests.stand_ins.channel import Caller
from tests.stand_ins.hosts import FilterHost, Host

HOSTS = 2
"""Processes that answer for all environment actors and rollout workers."""


class _Served:
    """An object that another process serves, for `tests.fakes.transport`."""

    def __init__(self, host: Caller) -> None:
        self.host = host

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        """The call of this name to the process."""
        return partial(self.host.call, method)

    async def live(self) -> NoReturn:
        """It never dies."""
        await asyncio.Event().wait()
        raise AssertionError

    def kill(self) -> None:
        """The process ends with the benchmark."""


class _Member(_Served):
    """One of many members of a host."""

    def __init__(self, host: Caller, name: str) -> None:
        super().__init__(host)
        self.name = name

    async def stop(self) -> object:
        """Nothing is held."""
        return None


class StandInPlayer(_Member):
    """An environment actor."""

    async def set_workers(self, workers: Mapping[str, Any]) -> None:
        """It needs no workers."""

    async def play(self, ticket: Ticket) -> tuple[GroupSummary, Payload]:
        """A made-up group; its payload is (host, ticket id)."""
        return await self.host.call("play_here", ticket), (self.host, ticket.ticket_id)


class StandInWorker(_Member):
    """A rollout worker."""

    async def update_weights(self, bundle: WeightBundle) -> UpdateReport:
        """Notes the version."""
        return await self.host.call("update_weights", self.name, bundle)

    async def health(self, timeout_s: float) -> object:
        """It is always well."""
        return None


class SleepingLearner:
    """A learner of one rank that sleeps `train_s` seconds a step."""

    def __init__(self, train_s: float) -> None:
        self.train_s = train_s

    async def identify(self) -> RankProcess:
        """The only node."""
        return RankProcess(NODE, LOOPBACK, 0)

    async def open_endpoint(self, one_node: bool) -> Endpoint:
        """It listens nowhere."""
        return Endpoint(LOOPBACK, 0, 0)

    async def unreachable(self, endpoints: Sequence[Endpoint]) -> dict[int, str]:
        """Nobody is to be reached."""
        return {}

    async def start(self, endpoints: Sequence[Endpoint], resumes: bool = False) -> None:
        """It is ready at once."""

    async def live(self) -> NoReturn:
        """It never dies."""
        await asyncio.Event().wait()
        raise AssertionError

    async def progress(self) -> Progress:
        """It has no micro-batches."""
        return Progress(0, 0.0)

    async def train_step(self, step: int, payloads: list[Payload], ids: list[str], terms: StepTerms) -> StepReport:
        """An update without work."""
        await asyncio.sleep(self.train_s)
        return StepReport(step, True, 1, len(ids), len(ids))

    async def publish(self, version: int, dtype: str) -> WeightBundle:
        """A bundle without weights."""
        return WeightBundle(version, (), f"version-{version}", np.zeros(1, np.int32), np.zeros(0, np.float32))

    async def write(self, path: Path, loop: Mapping[str, Any]) -> dict[str, float]:
        """As `save`; the driver seals the folder."""
        return await self.save(partial_path(path), loop)

    async def save(self, path: Path, loop: Mapping[str, Any]) -> dict[str, float]:
        """Writes the loop's state only."""
        path.mkdir(parents=True, exist_ok=True)
        (path / "loop.json").write_text(json.dumps(loop))
        return {}

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
    """The part of `Actors` that is about the cluster, for actors that need none: there is always room, and no node is
    added or taken away."""

    def control_endpoint(self) -> Client:
        """Nobody scales the benchmark's run."""
        raise NotImplementedError

    async def lacking(self, counts: Mapping[Kind, int]) -> str | None:
        """Nothing is lacking."""
        return None

    async def end_node_request(self) -> None:
        """No autoscaler was asked."""

    async def leaving(self) -> Mapping[str, float]:
        """No node is taken away."""
        return {}

    async def ranks_that_fit(self) -> int:
        """One rank has room."""
        return 1

    def free_resources(self) -> str:
        """Stand-ins need no resources."""
        return ""


class StandIns(NoCluster):
    """Creates stand-ins, of which the i-th of a kind belongs to host i, modulo their number. `connect` must be awaited
    first, and `end` ends the processes."""

    def __init__(self, config: RunConfig, hosts: Sequence[Caller], filter_host: Caller, train_s: float) -> None:
        self.payloads = StandInPayloads()
        self.config, self.train_s = config, train_s
        self._hosts, self._filter = hosts, filter_host

    async def connect(self) -> None:
        """Connects to every process."""
        for process in (*self._hosts, self._filter):
            await process.connect()

    def end(self) -> None:
        """Ends every process."""
        for process in (*self._hosts, self._filter):
            process.kill()

    def _host(self, name: str) -> Caller:
        return self._hosts[int(name.rpartition("-")[2]) % len(self._hosts)]

    def player(self, name: str) -> Client:
        """One of many environment actors."""
        return client(StandInPlayer(self._host(name), name), self.config)

    def worker(self, name: str) -> Client:
        """One of many rollout workers."""
        return client(StandInWorker(self._host(name), name), self.config)

    def filter(self) -> Client:
        """The filter service."""
        return client(_Served(self._filter), self.config)

    def scorer(self) -> Client:
        """The benchmark's configuration has none."""
        raise NotImplementedError

    def learner(self, ranks: int) -> LearnerClient:
        """The learner that sleeps."""
        return learner_client(SleepingLearner(self.train_s), 1, self.config)


class ProcessStandIns(StandIns):
    """Stand-ins whose hosts and filter are processes of their own."""

    def __init__(self, config: RunConfig, delay_s: float, train_s: float) -> None:
        self._processes = [
            channel.Client(FilterHost, config.filter),
            *(channel.Client(Host, seed, delay_s) for seed in range(HOSTS)),
        ]
        super().__init__(config, self._processes[1:], self._processes[0], train_s)

    async def pids(self) -> tuple[int, list[int]]:
        """The ids of the filter's process and of the hosts'."""
        service, *hosts = (process.pid for process in self._processes)
        return service, hosts
