"""The coordinator's side of the learner: every call to it, the figures of its steps, and the limit on refused steps.

The learner is one party, all of its ranks together (`learner.actor.LearnerGroup`), which bounds each call and names a
late or dead rank. The loss of the learner ends the run, which resumes from its last checkpoint. No other module calls
the learner, so that recovery of lost ranks could be added here.

    call         the coordinator waits for         on time-out
    train        every rank, the groups' rows      the run ends; the late rank is named
    publish      rank 0, every rollout worker      the run ends; the late rank or worker is named
    decompose    every rank                        the run ends; the late rank is named
    save, load   every rank, disk                  the run ends; rank or path is named
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from actors.messages import StepReport
from actors.rollout.metrics import update_figures
from cluster.config import RunConfig
from cluster.control.parties import Learner, Payload
from cluster.fleet.fleet import Fleet
from cluster.loop.journal import Journal
from cluster.loop.playing import PlayedGroup
from learner.decomposition.statistics import Decomposition
from learner.metrics import publication_figures


class Learning:
    """All calls to the learner. `refused_in_a_row`: steps refused since the last update."""

    def __init__(
        self, config: RunConfig, fleet: Fleet, journal: Journal, say: Callable[[str], None], refused_in_a_row: int = 0
    ) -> None:
        self.config, self.fleet, self.journal, self.say = config, fleet, journal, say
        self.refused_in_a_row = refused_in_a_row

    @property
    def learner(self) -> Learner:
        """The fleet's learner; RuntimeError if it was not started."""
        if self.fleet.learner is None:
            raise RuntimeError("the learner was not started")
        return self.fleet.learner

    async def train(self, step: int, groups: list[PlayedGroup], loss_scale: float) -> StepReport:
        """Trains on the groups. If the report has `refused` set, the weights have not changed."""
        started = time.time()
        ids = [group.ticket.ticket_id for group in groups]
        report = await self.learner.train_step(step, [group.table for group in groups], ids, loss_scale)
        ended = time.time()
        self.journal.event("learner", "call", started, ended, step=step)
        worked = sum(seconds for part, seconds in report.seconds.items() if part != "fetch")
        self.journal.worked("learner", ended - worked, ended)
        self.refused_in_a_row = self.refused_in_a_row + 1 if report.refused else 0
        if report.refused:
            self.say(f"step {step}: the learner refused the update: {report.refused}")
        return report

    def too_many_refused(self, report: StepReport | None) -> str | None:
        """The reason to end the run if `learner.max_bad_steps` steps in a row were refused; else None."""
        if report is None or self.refused_in_a_row < self.config.learner.max_bad_steps:
            return None
        return f"{self.refused_in_a_row} steps in a row refused (learner.max_bad_steps); last: {report.refused}"

    async def publish(self, version: int) -> dict[str, float]:
        """Publishes the current weights as `version` and loads them into every rollout worker."""
        started = time.time()
        bundle = await self.learner.publish(version, self.config.rollout.dtype)
        reports = await self.fleet.update_workers(bundle)
        self.journal.event("rollout", "weights", started, time.time(), version=version, checksum=bundle.checksum)
        return publication_figures(bundle) | update_figures(reports)

    async def decompose(self, payloads: list[Payload], ids: list[str]) -> Decomposition:
        """The gradient decomposition of these groups; the weights do not change."""
        return await self.learner.decompose(payloads, ids)

    async def save(self, path: Path, loop: Mapping[str, Any]) -> None:
        """Writes a checkpoint that includes the loop's state."""
        await self.learner.save(path.resolve(), dict(loop))


def learner_figures(report: StepReport | None) -> dict[str, float]:
    """Flat figures of a training step; `report` is None for a step without an update."""
    if report is None:
        return {"optimizer_steps": 0.0, "tokens/trained": 0.0}
    flat = {f"learner/{key}": value for key, value in report.metrics.items()}
    flat |= {f"learner_seconds/{part}": seconds for part, seconds in report.seconds.items()}
    return flat | {"optimizer_steps": float(report.optimizer_steps), "tokens/trained": float(report.num_tokens)}
