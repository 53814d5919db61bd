"""Parties that cost almost nothing, for `benchmarks.control_plane`: they answer through real Ray actors, but neither
generate nor train.

    party               stand-in                                                     process
    environment actor   `StandInPlayer`: a group of made-up tokens after a delay      one of at most four `Host` actors
    rollout worker      `StandInWorker`: answers every call                           one of at most four `Host` actors
    learner             `SleepingLearner`: sleeps, reports an update                  the driver's
    filter service      the real one                                                  its own
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import ray

from actors.messages import StepReport, UpdateReport, WeightBundle
from actors.process.spans import Span
from actors.records import Group, GroupSummary, Ticket, Trajectory, Turn, summarise, to_table
from cluster.config import RunConfig
from cluster.control.parties import Learner, Payload, Player, Worker
from cluster.fleet.ray_parties import RayParties, RayPlayer, RayWorker, answered
from learner.progress import RankProgress

HOSTS = 2
"""Processes that play for all stand-ins."""
PROMPT_TOKENS, SAMPLED_TOKENS = 40, 24


class Host:
    """The Ray actor that answers for many stand-ins. `delay_s`: mean seconds in which a group is played."""

    def __init__(self, delay_s: float) -> None:
        self.delay_s, self.version = delay_s, -1
        self._random = random.Random(os.getpid())

    async def ready(self) -> bool:
        """True once the actor is up."""
        return True

    async def set_workers(self, workers: Mapping[str, Any]) -> None:
        """Takes the rollout workers' handles, as an environment actor does."""

    async def update_weights(self, name: str, bundle: WeightBundle) -> UpdateReport:
        """Notes the version."""
        self.version = bundle.version
        return UpdateReport(name, bundle.version, bundle.checksum, 0.0, 0.0, 0.0, 0.0, 0.0)

    async def take_spans(self) -> list[Span]:
        """No span: nothing was worked."""
        return []

    async def stop(self) -> None:
        """Nothing is held."""

    async def play(self, ticket: Ticket) -> tuple[GroupSummary, pa.Table]:
        """A group of made-up trajectories after a random delay; call it with `num_returns=2`."""
        await asyncio.sleep(self._random.uniform(0.0, 2.0 * self.delay_s))
        members = [self._trajectory(index) for index in range(ticket.group_size)]
        group = Group(ticket, f"task-{ticket.task.seed}", members)
        return summarise(group), to_table(group)

    def _trajectory(self, index: int) -> Trajectory:
        reward, length = float(self._random.random() < 0.5), PROMPT_TOKENS + SAMPLED_TOKENS
        mask = np.arange(length) >= PROMPT_TOKENS
        turn = Turn(
            PROMPT_TOKENS, length, PROMPT_TOKENS, length - 4, reward, 0.0, True, False, 1, self.version, self.version
        )
        tokens = np.arange(length, dtype=np.int32)
        return Trajectory(index, tokens, mask, np.full(length, -0.5, np.float32), [turn], reward > 0, False)


class StandInPlayer(RayPlayer):
    """One of many environment actors of a host."""

    def kill(self) -> None:
        """Nothing: the host's process serves others."""


class StandInWorker(RayWorker):
    """One of many rollout workers of a host."""

    def __init__(self, handle: Any, name: str) -> None:
        super().__init__(handle)
        self.name = name

    async def update_weights(self, bundle: WeightBundle) -> UpdateReport:
        return await answered(self.handle.update_weights.remote(self.name, bundle))

    def kill(self) -> None:
        """Nothing: the host's process serves others."""


class SleepingLearner:
    """A learner that sleeps `train_s` seconds a step."""

    def __init__(self, train_s: float) -> None:
        self.train_s = train_s

    async def start(self) -> None:
        """It is ready at once."""

    async def lost(self) -> NoReturn:
        """It never dies."""
        await asyncio.Event().wait()
        raise AssertionError

    async def progress(self, timeout_s: float) -> list[RankProgress | None]:
        """It has no micro-batches."""
        return [RankProgress(0, 0.0)]

    async def train_step(self, step: int, payloads: list[Payload], ids: list[str], loss_scale: float) -> StepReport:
        """An update without work."""
        await asyncio.sleep(self.train_s)
        return StepReport(step, True, 1, len(ids), len(ids))

    async def decompose(self, payloads: list[Payload], ids: list[str]) -> Any:
        """The benchmark's configuration never asks for it."""
        raise NotImplementedError

    async def publish(self, version: int, dtype: str) -> WeightBundle:
        """A bundle without weights."""
        return WeightBundle(version, (), f"version-{version}", np.zeros(1, np.int32), np.zeros(0, np.float32))

    async def save(self, path: Path, loop: Mapping[str, Any]) -> None:
        """Writes the loop's state only."""
        path.mkdir(parents=True, exist_ok=True)
        (path / "loop.json").write_text(json.dumps(loop))

    async def load(self, path: Path) -> None:
        """Nothing was saved."""

    async def stop(self) -> None:
        """Nothing runs."""

    def kill(self) -> None:
        """Nothing runs."""


class StandIns(RayParties):
    """Creates stand-ins, and the real filter service."""

    def __init__(self, config: RunConfig, logs: Path, delay_s: float, train_s: float) -> None:
        super().__init__(config, Path(), logs)
        host = ray.remote(Host).options(num_cpus=0, max_concurrency=10_000)
        self.hosts = [host.remote(delay_s) for _ in range(HOSTS)]
        self.train_s = train_s

    def _host(self, name: str) -> Any:
        return self.hosts[int(name.rpartition("-")[2]) % len(self.hosts)]

    def player(self, name: str) -> Player:
        """One of many environment actors."""
        return StandInPlayer(self._host(name))

    def worker(self, name: str) -> Worker:
        """One of many rollout workers."""
        return StandInWorker(self._host(name), name)

    def learner(self, ranks: int) -> Learner:
        """The learner that sleeps."""
        return SleepingLearner(self.train_s)
