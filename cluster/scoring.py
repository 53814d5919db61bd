"""The coordinator's side of the scorer: offers it steps and collects figures; never waits for it.

A step that comes while the scorer is busy is skipped and counted; a scoring past `scorer.timeout_s` is reported late; a
dead scorer is an alarm and is replaced, with the moving averages of its last finished scoring.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from ray.exceptions import RayActorError, RayError

from actors.messages import WeightBundle
from cluster.config import RunConfig
from cluster.fleet import Fleet
from cluster.play import PlayedGroup

log = logging.getLogger(__name__)
DRAIN_TIMEOUT_S = 60.0


class Scoring:
    """At most one scoring under way; its figures are taken by the next step's record."""

    def __init__(self, config: RunConfig, fleet: Fleet, on_event: Callable[..., None]) -> None:
        self.config, self.fleet, self.on_event = config.scorer, fleet, on_event
        self.max_staleness = config.loop.max_staleness
        self.outcomes: Counter[str] = Counter()
        self._figures: dict[str, float] = {}
        self._state: dict[str, Any] | None = None
        self._task: asyncio.Task[None] | None = None
        self._late_said = False
        self._started = 0.0

    def due(self, step: int) -> bool:
        return self.fleet.scorer is not None and (step == 1 or step % self.config.every == 0)

    def offer(self, step: int, bundle: WeightBundle, groups: list[PlayedGroup], version: int) -> None:
        """Starts scoring a step that is due, unless the scorer is still busy with one."""
        if self._busy() and not self._late_said and time.time() - self._started > self.config.timeout_s:
            self._late_said = True
            self._count("late")
            log.warning("the scorer is late: over %g s (scorer.timeout_s)", self.config.timeout_s)
        if not self.due(step):
            return
        if self._busy():
            self._count("skipped")
            return
        self._late_said, self._started = False, time.time()
        self._task = asyncio.create_task(self._score(step, bundle, groups))

    async def _score(self, step: int, bundle: WeightBundle, groups: list[PlayedGroup]) -> None:
        started = time.time()
        scorer = self.fleet.scorer
        try:
            figures = await scorer.score.remote(step, bundle, [g.table for g in groups])
            self._state = await scorer.state.remote()
        except RayActorError as error:
            self._count("failed")
            self.on_event("scorer", "death", started, time.time(), step=step, cause=str(error))
            self.fleet.replace_scorer(str(error))
            await self.restore(self._state)
        except RayError as error:
            self._count("failed")
            self.on_event("scorer", "error", started, time.time(), step=step, cause=str(error))
            log.error("scoring step %d failed: %s", step, error)
        else:
            self._count("done")
            self._figures |= figures | {"scorer/step": float(step), "seconds/score": time.time() - started}
            self.on_event("scorer", "score", started, time.time(), step=step)

    def _busy(self) -> bool:
        return self._task is not None and not self._task.done()

    def _count(self, outcome: str) -> None:
        self.outcomes[outcome] += 1
        key = f"scorer/{outcome}"
        self._figures[key] = self._figures.get(key, 0.0) + 1

    def take_figures(self) -> dict[str, float]:
        """Figures of scorings finished since they were last taken."""
        taken, self._figures = self._figures, {}
        return taken

    async def drain(self) -> None:
        """Gives a scoring under way a bounded time to finish, at the end of a run."""
        if self._task is None:
            return
        _, late = await asyncio.wait({self._task}, timeout=DRAIN_TIMEOUT_S)
        for task in late:
            task.cancel()
            self._count("late")

    async def restore(self, state: dict[str, Any] | None) -> None:
        self._state = state
        if state is not None and self.fleet.scorer is not None:
            await asyncio.wait_for(_await(self.fleet.scorer.restore.remote(state)), self.config.timeout_s)

    async def state(self) -> dict[str, Any] | None:
        """State after the last finished scoring; does not wait for one under way."""
        return self._state


async def _await(ref: Any) -> Any:
    return await ref
