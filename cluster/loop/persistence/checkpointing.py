"""The coordinator's side of the checkpoints. A checkpoint is one folder with the learner's shards and the loop's state;
it exists completely or not at all.

The loop waits for the previous part of the archive, then for every learner rank and the disk. Ranks that are lost
meanwhile are recovered (`cluster.loop.learner_side.learning`); if the disk refuses, the run ends and names the path.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from squelch.cluster.config import RunConfig
from squelch.cluster.loop.learner_side.learning import Learning
from squelch.cluster.loop.persistence.archiving import Archiving
from squelch.cluster.loop.persistence.journal import Journal
from squelch.cluster.loop.persistence.state import LoopState, amend, checkpoint_dir, checkpoints, prune


class Checkpointing:
    """Writes checkpoints to a run's folder; keeps the newest `loop.keep_checkpoints`, the best, and the newest from
    before a fall of what an alarm watches, or before a bad state of the reasoning."""

    def __init__(self, config: RunConfig, learning: Learning, archiving: Archiving, journal: Journal) -> None:
        self.run_dir, self.keep = config.run_dir, config.loop.keep_checkpoints
        self.learning, self.archiving, self.journal = learning, archiving, journal

    def newest(self) -> int:
        """Step of the newest complete checkpoint; 0 if there is none."""
        return (checkpoints(self.run_dir) or [(0, None)])[-1][0]

    async def save(self, step: int, state: LoopState, sound: int | None) -> None:
        """Writes the checkpoint of a step after its rows are in the archive, and deletes those that are not needed any
        more. `sound`: the last step at which the reasoning was sound (`Scoring.sound_until`)."""
        started = time.time()
        await self.archiving.finish()
        await self.learning.save(checkpoint_dir(self.run_dir, step), vars(state))
        await asyncio.to_thread(prune, self.run_dir, self.keep, state.best_step, sound)
        self.journal.event("learner", "checkpoint", started, time.time(), step=step)

    def amend(self, step: int, facts: dict[str, Any]) -> None:
        """Replaces fields of the loop's state in the checkpoint of a step."""
        amend(checkpoint_dir(self.run_dir, step), **facts)
