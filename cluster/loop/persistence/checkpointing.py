"""The coordinator's client of the checkpoints. A checkpoint is one folder with the learner's shards and the loop's
state; it exists completely or not at all.

The loop waits for the previous part of the archive, then for every learner rank and the disk. Ranks that are lost
meanwhile are recovered (`cluster.loop.learner_client.learning`); if the disk fails, the run ends and names the path.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from squelch.cluster.config import RunConfig
from squelch.cluster.loop.learner_client.learning import Learning
from squelch.cluster.loop.persistence.archiving import Archiving
from squelch.cluster.loop.persistence.checkpoint_folders import checkpoint_dir, checkpoints, prune
from squelch.cluster.loop.persistence.run_log import RunLog
from squelch.cluster.loop.persistence.state import LoopState, amend
from squelch.cluster.loop.stopwatch import Stopwatch
from squelch.cluster.loop.watchers.alarms import Alarms
from squelch.cluster.loop.watchers.validation import Validation


class Checkpointing:
    """Writes checkpoints to a run's folder; keeps the newest `loop.keep_checkpoints`, the best, and the newest from
    before a drop that an alarm sees, or before a bad state of the reasoning."""

    def __init__(
        self,
        config: RunConfig,
        learning: Learning,
        archiving: Archiving,
        run_log: RunLog,
        validation: Validation,
        alarms: Alarms,
    ) -> None:
        self.run_dir, self.loop = config.run_dir, config.loop
        self.learning, self.archiving, self.run_log = learning, archiving, run_log
        self.validation, self.alarms = validation, alarms
        self._stopwatch = Stopwatch()
        self.is_before_a_move = False
        """Whether a checkpoint was written since it is known that the learner loses a node."""

    def newest(self) -> int:
        """Step of the newest complete checkpoint; 0 if there is none."""
        return (checkpoints(self.run_dir) or [(0, None)])[-1][0]

    def due(self, step: int) -> bool:
        """Whether a step has a checkpoint by its number, or because validation success was never higher."""
        by_number = step % self.loop.checkpoint_every == 0 or step == self.loop.steps
        return by_number or self.validation.best_step == step

    async def save(self, step: int, state: LoopState) -> None:
        """Writes the checkpoint of a step after its rows are in the archive, and deletes those that are not needed any
        more."""
        started = time.time()
        state.seconds += self._stopwatch.lap()
        await self.archiving.finish()
        await self.learning.save(checkpoint_dir(self.run_dir, step), vars(state))
        spared = self.validation.best_step, self.alarms.healthy_until
        await asyncio.to_thread(prune, self.run_dir, self.loop.keep_checkpoints, *spared)
        self.run_log.event("learner", "checkpoint", started, time.time(), step=step)

    def amend(self, step: int, facts: dict[str, Any]) -> None:
        """Replaces fields of the loop's state in the checkpoint of a step."""
        amend(checkpoint_dir(self.run_dir, step), **facts)
