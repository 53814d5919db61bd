"""The stand-ins of `tests.stand_ins.processes` behind Ray actors, one Ray call each, as in a run."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import ray

from squelch.cluster.config import RunConfig
from squelch.cluster.control.client import Client
from squelch.cluster.control.rank_client import LearnerClient
from squelch.cluster.fleet.ray_actors import RayActors
from squelch.kit.records.records import GroupSummary, Ticket
from tests.fakes.transport import learner_client
from tests.stand_ins.hosts import Host
from tests.stand_ins.processes import HOSTS, SleepingLearner


class RayHost(Host):
    """A host as a Ray actor."""

    async def pid(self) -> int:
        """The process' id."""
        return os.getpid()

    @ray.method(num_returns=2)
    async def play(self, ticket: Ticket) -> tuple[GroupSummary, pa.Buffer]:
        """As `Host.play`."""
        return await super().play(ticket)

    async def set_workers(self, workers: Any) -> None:
        """Takes the rollout workers' handles, as an environment actor does."""

    async def stop(self) -> None:
        """Nothing is held."""


class WorkerHandle:
    """The handle of one of many rollout workers of a host."""

    def __init__(self, host: Any, name: str) -> None:
        self.host = host
        self.update_weights = SimpleNamespace(remote=partial(host.update_weights.remote, name))

    def __getattr__(self, method: str) -> Any:
        return getattr(self.host, method)


class SharedClient(Client):
    """The client of one of many members of a host."""

    def kill(self) -> None:
        """Nothing: the host's process serves others."""


class RayStandIns(RayActors):
    """Creates stand-ins behind Ray actors, and the real filter service."""

    def __init__(self, config: RunConfig, logs: Path, delay_s: float, train_s: float) -> None:
        super().__init__(config, Path(), logs)
        host = ray.remote(RayHost).options(num_cpus=0, max_concurrency=10_000)
        self.hosts = [host.remote(seed, delay_s) for seed in range(HOSTS)]
        self._service = super().filter()
        self.train_s = train_s

    async def connect(self) -> None:
        """Ray connects."""

    async def pids(self) -> tuple[int, list[int]]:
        """The ids of the filter's process and of the hosts'."""
        service = self._service.handle.__ray_call__.remote(lambda _: os.getpid())
        return await service, [await host.pid.remote() for host in self.hosts]

    def end(self) -> None:
        """Ray ends the actors."""

    def _host(self, name: str) -> Any:
        return self.hosts[int(name.rpartition("-")[2]) % len(self.hosts)]

    def filter(self) -> Client:
        """The filter service."""
        return self._service

    def player(self, name: str) -> Client:
        """One of many environment actors."""
        return SharedClient(self._host(name), self.transport, self.config)

    def worker(self, name: str) -> Client:
        """One of many rollout workers."""
        return SharedClient(WorkerHandle(self._host(name), name), self.transport, self.config)

    def learner(self, ranks: int) -> LearnerClient:
        """The learner that sleeps."""
        return learner_client(SleepingLearner(self.train_s), 1, self.config)
