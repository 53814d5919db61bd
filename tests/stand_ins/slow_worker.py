"""Real actors of which the rollout workers sample as slowly as they are told, for `benchmarks.overlap --real`."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

from squelch.actors.config import RolloutConfig
from squelch.actors.messages import Completion
from squelch.actors.process.shell import asynchronous
from squelch.actors.process.shipping import Folder
from squelch.actors.process.spans import Span
from squelch.actors.rollout.worker import RolloutWorker
from squelch.cluster.config import RunConfig
from squelch.cluster.control.calls import ROLLOUT_WORKER
from squelch.cluster.control.client import Client
from squelch.cluster.fleet.ray_actors import CALLERS, RayActors


class SlowWorker(RolloutWorker):
    """A rollout worker that delivers a token `seconds_per_token` after the token before it at the earliest, as an
    engine at capacity does: tokens of all requests share this time, and the wait uses no processor."""

    def __init__(self, name: str, model: Folder | str, config: RolloutConfig, seconds_per_token: float) -> None:
        super().__init__(name, model, config)
        self.seconds_per_token = seconds_per_token
        self._free_at = 0.0
        self._waits: list[Span] = []

    async def collect(self, client: str, timeout_s: float) -> list[Completion]:
        """As `RolloutWorker.collect`, later."""
        completions = await super().collect(client, timeout_s)
        tokens = sum(len(one.token_ids) for one in completions)
        began = max(time.time(), self._free_at)
        self._free_at = began + tokens * self.seconds_per_token
        if tokens:
            self._waits.append((began, self._free_at))
        await asyncio.sleep(self._free_at - time.time() if tokens else 0.0)
        return completions

    async def take_spans(self) -> list[Span]:
        """The intervals in which it sampled, simulated time included."""
        waits, self._waits = self._waits, []
        return [*await super().take_spans(), *waits]


class SlowActors(RayActors):
    """Real actors with slow rollout workers."""

    def __init__(self, config: RunConfig, model_dir: Path, logs: Path, seconds_per_token: float) -> None:
        super().__init__(config, model_dir, logs)
        self.seconds_per_token = seconds_per_token

    def worker(self, name: str) -> Client:
        """A slow rollout worker on the driver's node."""
        rollout = self.config.rollout
        table = replace(ROLLOUT_WORKER, target="tests.stand_ins.slow_worker:SlowWorker")
        actor = self._created(name, table, asynchronous, {"num_cpus": rollout.num_cpus, **CALLERS})
        return self._client(actor.remote(name, self._model(), rollout, self.seconds_per_token))
