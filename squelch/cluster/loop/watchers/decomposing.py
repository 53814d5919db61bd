"""The gradient decomposition within a run: every `gradients.every` steps, before the learner updates the weights.

The decomposition uses only groups that the current version sampled: those of the step's own groups, and as many further
groups as are needed. The further groups are played on validation tasks for the decomposition alone and never trained
on, so that it uses up no training task. Their tickets are neither in the ledger nor in the archive. The metrics are in
the step's metrics and, for each group, in `runs/<name>/gradients/step-NNNNNN.json`.

    waits for         unblocked by          on time-out
    extra groups      environment actors    the ticket is retried or fails (cluster.loop.tickets.playing)
    every rank        learner               step_timeout_s per group; the run ends and names the late rank
"""

from __future__ import annotations

import asyncio
import json
import logging
import time

import numpy as np

from squelch.cluster.config import RunConfig
from squelch.cluster.control.admission import task_of
from squelch.cluster.control.calls import DECOMPOSE
from squelch.cluster.loop.learner_client.learning import Learning
from squelch.cluster.loop.tickets.playing import Play, PlayedGroup
from squelch.cluster.loop.watchers.watcher import Step, Watcher
from squelch.kit.base.disk import write_whole
from squelch.kit.records.records import GroupSummary, Ticket

log = logging.getLogger(__name__)
FOLDER = "gradients"


class Decomposing(Watcher):
    """Measures the steps that are due; see the module's docstring."""

    def __init__(self, config: RunConfig, learning: Learning, play: Play) -> None:
        self.config, self.learning, self.play = config, learning, play
        self._metrics: dict[str, float] = {}

    async def before_train(self, step: Step) -> None:
        """Measures at the weights that sampled the step's groups."""
        every = self.config.gradients.every
        due = every > 0 and step.number % every == 0
        self._metrics = await self._measure(step.number, step.version, step.groups) if due else {}

    def metrics(self, step: Step) -> dict[str, float]:
        """Metrics of the decomposition before this step's update."""
        return self._metrics

    async def _measure(self, step: int, version: int, window: list[PlayedGroup]) -> dict[str, float]:
        """The step's flat metrics. `version`: the version of the learner's weights."""
        settings = self.config.gradients
        started = time.time()
        own = [g for g in window if g.summary.version_min == g.summary.version_max == version]
        extra = [self.play.group(ticket) for ticket in self._tickets(step, settings.groups - len(own))]
        played = sorted([*own, *await asyncio.gather(*extra)], key=lambda g: g.ticket.ticket_id)
        groups = [g for g in played if comparable(g.summary)]
        if len(groups) < 2:
            log.warning(
                "step %d: only %d of %d groups have two usable trajectories of the current version, and at least 2 are "
                "needed; no gradients are decomposed",
                step,
                len(groups),
                len(played),
            )
            return {"seconds/gradients": time.time() - started}
        if len(groups) < settings.groups:
            log.warning(
                "step %d: only %d groups have two usable trajectories of the current version; gradients.groups=%d",
                step,
                len(groups),
                settings.groups,
            )
        tables, ids = [g.table for g in groups], [g.ticket.ticket_id for g in groups]
        found = await self.learning.call(DECOMPOSE, tables, ids)
        facts = {"step": step, "version": version, **found.as_data()}
        path, text = self.config.run_dir / FOLDER / f"step-{step:06d}.json", json.dumps(facts, allow_nan=False) + "\n"
        await asyncio.to_thread(write_whole, path, text)
        return found.flat() | {"seconds/gradients": time.time() - started}

    def _tickets(self, step: int, count: int) -> list[Ticket]:
        """Tickets for further groups: validation tasks of the run's environments, in the order of its schedule."""
        sampling, entries, schedule = self.config.sampling, self.config.mixture.entries, self.config.mixture.schedule()
        found: list[Ticket] = []
        for i, turn in enumerate(map(schedule.turn, range(max(0, count)))):
            entry = entries[turn.entry]
            task = task_of(entry, entry.environment.validation_seed + turn.before, "validation")
            ticket_id, settings = f"g{step:06d}-{i:03d}", (self.config.seed, sampling.temperature)
            found.append(Ticket(ticket_id, step, task, sampling.group_size, *settings))
        return found


def comparable(summary: GroupSummary) -> bool:
    """Whether the learner accepts the group: it has two trajectories, finite numbers, and sampled tokens. Other groups
    are left out, because a refusal would end the run."""
    numbers = np.concatenate([summary.returns, summary.format_penalties, summary.surprisals])
    return len(summary.indices) > 1 and bool(np.isfinite(numbers).all() and summary.lengths.any())
