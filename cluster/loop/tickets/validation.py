"""Validation during training: the same fixed tasks each time, one trajectory per task (paper, appendix B.2).

The weights do not change during a validation, because no version is published before it ends. It waits for the
environment actors; the tasks of a dead actor or rollout worker are played again by others (`playing`).
"""

from __future__ import annotations

import time

import numpy as np

from squelch.actors.diagnosis.uncertainty import wilson_interval
from squelch.actors.failures import Failure
from squelch.actors.records import Ticket
from squelch.cluster.config import RunConfig
from squelch.cluster.control.admission import validation_tickets
from squelch.cluster.loop.persistence.state import LoopState
from squelch.cluster.loop.tickets.playing import Play, failures
from squelch.cluster.runs.gain import gain_interval


def fixed_tickets(config: RunConfig) -> list[Ticket]:
    """The tickets of the run's fixed validation tasks."""
    validation = config.validation
    return validation_tickets(config.environment, validation.tasks, config.seed, validation.temperature)


class Validation:
    """Success on the fixed tasks, its interval, the gain over the first validation, and the best step so far."""

    def __init__(self, config: RunConfig, play: Play, state: LoopState) -> None:
        self.config, self.play, self.state = config.validation, play, state
        self.solved = np.zeros(0, dtype=bool)
        """(num_tasks,) success of each fixed task at the last validation."""
        self.failed: list[Failure] = []
        """Of the tasks of the last validation whose trajectory failed, which is no success."""
        self.tickets = fixed_tickets(config)

    def due(self, step: int, last: bool) -> bool:
        """Whether to validate after this step: every `validation.every` steps and after the last; never if it is 0."""
        return self.config.every > 0 and (last or step % self.config.every == 0)

    async def measure(self, step: int) -> dict[str, float]:
        """Plays the tasks after a training step; returns the flat figures."""
        started = time.time()
        solved, played = await self.play.validate(self.tickets)
        self.solved, self.failed = solved, failures(played)
        success, (low, high) = float(solved.mean()), wilson_interval(int(solved.sum()), len(solved))
        if success > self.state.best_success:
            self.state.best_success, self.state.best_step = success, step
        return {
            "validation/success": success,
            "validation/success_low": low,
            "validation/success_high": high,
            "validation/failed": float(len(self.failed)),
            "validation/step": float(step),
            "validation/best": self.state.best_success,
            "seconds/validation": time.time() - started,
            "collapsed": float(success < self.config.collapse_threshold <= self.state.best_success),
            **self._gain(step, solved),
        }

    def _gain(self, step: int, solved: np.ndarray) -> dict[str, float]:
        """The paired gain over the run's first validation; empty if this is the first."""
        if self.state.first_validation is None:
            self.state.first_validation = {"step": step, "solved": solved.astype(int).tolist()}
            return {}
        before = np.array(self.state.first_validation["solved"], dtype=bool)
        return dict(zip(("gain", "gain_low", "gain_high"), gain_interval(before, solved), strict=True))
