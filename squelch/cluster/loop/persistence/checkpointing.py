"""The coordinator's client of the checkpoints. A checkpoint is one folder with the learner's shards and the loop's
state; it exists completely or not at all.

    loop                                  beside it, while the next step's groups are played
    `begin`: copies the loop's state ──▶  the step's part of the archive is on disk
    the next call to the learner   ◀──    every rank writes its shards, rank 0 the export
    the next checkpoint, the end   ◀──    the folder is on the disk and has its name; checkpoints that are not needed
                                          any more are deleted

The state is that of the moment at which the checkpoint was begun, and the weights do not change until its files hold
them (`cluster.loop.learner_client.saving`). Ranks that are lost meanwhile are recovered; if the disk fails, the run
ends and names the path.
"""

from __future__ import annotations

import json
import time
from typing import Any

from squelch.cluster.config import RunConfig
from squelch.cluster.daemon_thread import answered
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
        """Whether a step has a checkpoint by its number, because validation success was never higher, or because the
        last one was dropped."""
        by_number = step % self.loop.checkpoint_every == 0 or step == self.loop.steps
        return by_number or self.validation.best_step == step or self.learning.saving.dropped

    def begin(self, step: int, state: LoopState) -> None:
        """Starts to write the checkpoint of a step, with the loop's present state."""
        state.seconds += self._stopwatch.lap()
        loop = json.loads(json.dumps(vars(state)))
        self.learning.saving.begin(self._write(step, loop, self.validation.best_step, self.alarms.healthy_until))

    async def _write(self, step: int, loop: dict[str, Any], best: int, healthy: int | None) -> None:
        started = time.time()
        await self.archiving.finish()
        parts = await self.learning.save(checkpoint_dir(self.run_dir, step), step, loop)
        await self._prune(best, healthy)
        ended = time.time()
        self.run_log.event("learner", "checkpoint", started, ended, step=step, seconds=parts)
        self.run_log.carry({"seconds/checkpoint_write": ended - started})

    async def _prune(self, best: int, healthy: int | None) -> None:
        """Deletes the checkpoints that are needed neither by the state of the one that was written (`best`, `healthy`)
        nor by the present one: later steps that the present state names may have no checkpoint yet."""
        needed = {best, self.validation.best_step, self.alarms.named}
        limits = {healthy, self.alarms.healthy_until}
        bound_s = self.learning.config.learner.checkpoint_timeout_s
        late = (
            f"{self.run_dir / 'checkpoints'}: the disk has not deleted the checkpoints that are not needed within "
            f"{bound_s:g} s (learner.checkpoint_timeout_s); is it still there?"
        )
        await answered(bound_s, late, prune, self.run_dir, self.loop.keep_checkpoints, needed, limits)

    def amend(self, step: int, facts: dict[str, Any]) -> None:
        """Replaces fields of the loop's state in the checkpoint of a step."""
        amend(checkpoint_dir(self.run_dir, step), **facts)
