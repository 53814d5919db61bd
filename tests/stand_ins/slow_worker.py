"""Real parties of which the rollout workers sample as slowly as they are told, for `benchmarks.overlap --real`."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import ray

from squelch.actors.config import RolloutConfig
from squelch.actors.messages import Completion
from squelch.actors.process.shipping import Folder
from squelch.actors.process.spans import Span
from squelch.actors.rollout.worker import RolloutWorker
from squelch.cluster.config import RunConfig
from squelch.cluster.fleet.ray_actors import RayActors, RayWorker


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
    """Real parties with slow rollout workers."""

    def __init__(self, config: RunConfig, model_dir: Path, logs: Path, seconds_per_token: float) -> None:
        super().__init__(config, model_dir, logs)
        self.seconds_per_token = seconds_per_token

    def worker(self, name: str) -> RayWorker:
        """A slow rollout worker on the driver's node."""
        rollout = self.config.rollout
        shell: Any = ray.remote(SlowWorker)
        options = {"num_cpus": rollout.num_cpus, "max_concurrency": 1000, "runtime_env": self._process(name)}
        return RayWorker(shell.options(**options).remote(name, self._model(), rollout, self.seconds_per_token))
