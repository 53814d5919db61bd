"""Validation during training: the same fixed tasks each time, one trajectory per task (paper, appendix B.2).

It runs before the first step, every `validation.every` steps, and after the last. The weights do not change during a
validation, because no version is published before it ends.

    waits for         unblocked by           on time-out or death
    the fixed tasks   environment actors     other actors retry the tasks of a dead actor or rollout worker
                                             (`cluster.loop.tickets.playing`); then the run ends and the actor is named

A stop finishes the step in training with its validation, so that the resumed run has the same metrics.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from squelch.cluster.config import RunConfig
from squelch.cluster.control.admission import validation_tickets
from squelch.cluster.loop.persistence.run_log import RunLog
from squelch.cluster.loop.tickets.playing import Play, failed_text, failures
from squelch.cluster.loop.watchers.watcher import Step, Watcher
from squelch.cluster.runs.ending import Ending
from squelch.cluster.runs.gain import Part, parts_of, success_interval, success_of, weighted_gain
from squelch.kit.records.failures import Failure
from squelch.kit.records.records import Ticket


def fixed_tickets(config: RunConfig) -> list[Ticket]:
    """The tickets of the run's fixed validation tasks: as many of each environment, one environment after another."""
    chosen, entries = config.validation, config.mixture.entries
    return [
        ticket
        for place, entry in enumerate(entries)
        for ticket in validation_tickets(entry, chosen.tasks, config.seed, chosen.temperature, place * chosen.tasks)
    ]


@dataclass(frozen=True)
class Validated:
    """One validation. `solved`: (num_tasks,) bool, success of each fixed task; `started`: unix seconds; `parts`: the
    tasks of each environment."""

    step: int
    started: float
    solved: np.ndarray
    parts: list[Part]
    failures: list[Failure]
    """Failures of the tasks whose trajectory failed; these count as no success."""

    @property
    def success(self) -> float:
        """Share of the tasks that were solved, by the environments' weights."""
        return success_of(self.solved, self.parts)

    @property
    def by_label(self) -> dict[str, float]:
        """Success in each of several environments."""
        return {part.label: float(self.solved[part.place].mean()) for part in self.parts if part.label}


class Validation(Watcher):
    """Success on the fixed tasks, its interval, the gain over the first validation, and the best step so far.
    `followers` are called with each validation, and may end the run."""

    name = "validation"

    def __init__(
        self,
        config: RunConfig,
        play: Play,
        run_log: RunLog,
        followers: Sequence[Callable[[Validated], Ending | None]] = (),
    ) -> None:
        self.config, self.play, self.run_log, self.followers = config.validation, play, run_log, followers
        self.tickets, self.parts = fixed_tickets(config), parts_of(config.mixture, config.validation.tasks)
        self.best_success, self.best_step = -1.0, -1
        self.first: dict[str, Any] | None = None
        """The step of the run's first validation, and the success of each task in it."""
        self._metrics: dict[str, float] = {}

    def due(self, step: int, last: bool) -> bool:
        """Whether to validate after this step: every `validation.every` steps and after the last; never if it is 0."""
        return self.config.every > 0 and (last or step % self.config.every == 0)

    async def begin(self, clock: int) -> None:
        """Validates the policy that a new run starts from."""
        if clock == 0 and self.due(0, last=False):
            await self._validate(0)

    async def after_train(self, step: Step) -> Ending | None:
        """Validates after the steps that are due."""
        self._metrics = {}
        return await self._validate(step.number) if self.due(step.number, step.is_last) else None

    def metrics(self, step: Step) -> dict[str, float]:
        """Metrics of a validation after this step."""
        return self._metrics

    async def _validate(self, step: int) -> Ending | None:
        """Plays the tasks after a training step, and reports the result."""
        started = time.time()
        with self.run_log.meanwhile():
            self.run_log.doing(f"step {step}: validating on {len(self.tickets)} tasks")
            solved, played = await self.play.validate(self.tickets)
        found = Validated(step, started, solved, self.parts, failures(played))
        flat = self._metrics = self._metrics_of(found)
        self.run_log.busy(started, time.time())
        endings = [follow(found) for follow in self.followers]
        self.run_log.last |= flat
        if step == 0:
            self.run_log.before_training(flat)
        interval = f"[{flat['validation/success_low']:.3f}, {flat['validation/success_high']:.3f}]"
        each = "".join(f"  {label} {success:.3f}" for label, success in found.by_label.items())
        self.run_log.say(f"step {step:4d}  validation success {flat['validation/success']:.3f}  {interval}{each}")
        if text := failed_text(found.failures, len(self.tickets)):
            self.run_log.event("validation", "tasks_failed", started, time.time(), step=step, text=text)
            self.run_log.say(f"step {step:4d}  WARNING: {text}")
        return next((ending for ending in endings if ending is not None), None)

    def _metrics_of(self, found: Validated) -> dict[str, float]:
        success, (low, high) = found.success, success_interval(found.solved, found.parts)
        if success > self.best_success:
            self.best_success, self.best_step = success, found.step
        return {
            "validation/success": success,
            "validation/success_low": low,
            "validation/success_high": high,
            "validation/failed": float(len(found.failures)),
            "validation/step": float(found.step),
            "validation/best": self.best_success,
            "seconds/validation": time.time() - found.started,
            "collapsed": float(success < self.config.collapse_threshold <= self.best_success),
            **{f"environment/validation/{label}": success for label, success in found.by_label.items()},
            **self._gain(found),
        }

    def _gain(self, found: Validated) -> dict[str, float]:
        """The paired gain over the run's first validation; empty if this is the first."""
        if self.first is None:
            self.first = {"step": found.step, "solved": found.solved.astype(int).tolist()}
            return {}
        before = np.array(self.first["solved"], dtype=bool)
        return dict(
            zip(("gain", "gain_low", "gain_high"), weighted_gain(before, found.solved, found.parts), strict=True)
        )

    def state(self) -> dict[str, Any]:
        """The best and the first validation."""
        return {"best_success": self.best_success, "best_step": self.best_step, "first": self.first}

    def restore(self, state: dict[str, Any], anew: Collection[str]) -> None:
        """Gains and the best step hold for the same tasks; with other tasks they start over."""
        if "validation" not in anew:
            self.best_success, self.best_step, self.first = state["best_success"], state["best_step"], state["first"]
