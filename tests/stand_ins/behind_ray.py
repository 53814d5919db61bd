"""The stand-ins of `tests.stand_ins.processes` behind Ray actors, one Ray call each, as in a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import ray

from squelch.actors.messages import UpdateReport, WeightBundle
from squelch.cluster.config import RunConfig
from squelch.cluster.control.protocols import Learner, Player, Worker
from squelch.cluster.fleet.ray_actors import RayActors, RayFilter, RayPlayer, RayWorker, answered
from tests.stand_ins.hosts import Host
from tests.stand_ins.processes import HOSTS, SleepingLearner


class RayHost(Host):
    """A host as a Ray actor."""

    async def pid(self) -> int:
        """The process' id."""
        return os.getpid()

    async def set_workers(self, workers: Any) -> None:
        """Takes the rollout workers' handles, as an environment actor does."""

    async def stop(self) -> None:
        """Nothing is held."""


class RayStandInPlayer(RayPlayer):
    """One of many environment actors of a host."""

    def kill(self) -> None:
        """Nothing: the host's process serves others."""


class RayStandInWorker(RayWorker):
    """One of many rollout workers of a host."""

    def __init__(self, handle: Any, name: str) -> None:
        super().__init__(handle)
        self.name = name

    async def update_weights(self, bundle: WeightBundle) -> UpdateReport:
        return await answered(self.handle.update_weights.remote(self.name, bundle))

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

    def filter(self) -> RayFilter:
        """The filter service."""
        return self._service

    def player(self, name: str) -> Player:
        """One of many environment actors."""
        return RayStandInPlayer(self._host(name))

    def worker(self, name: str) -> Worker:
        """One of many rollout workers."""
        return RayStandInWorker(self._host(name), name)

    def learner(self, ranks: int) -> Learner:
        """The learner that sleeps."""
        return SleepingLearner(self.train_s)
