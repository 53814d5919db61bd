"""Plays the tasks of the fixed probe (`kit.scoring.probe_scoring`), and hands their groups to the scorer.

The probe is evaluated before step 1, every `scorer.probe.every` steps, and after the last.

The tasks are the first of the fixed validation tasks, which are never trained on, and their request seeds are the same
each time. Their first turns, the only ones that are scored, are played while no version is published, so that one
version samples them all. Their groups are neither in the ledger nor in the archive. The scorer works on them while
training goes on (`scoring`). The resumed run repeats an evaluation that a stop left without a result. The clusters of
hard negatives are asked for once in a process, at the first evaluation.

    waits for                unblocked by         on time-out or death
    the tasks                environment actors   the ticket is retried or fails (cluster.loop.tickets.playing)
    the clusters             an environment actor after `loop.group_timeout_s` another one is asked, at last none
    before the last one,     the scorer           as the wait for its last step (`scoring`)
    the one under way
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from squelch.cluster.config import RunConfig
from squelch.cluster.control.admission import validation_tickets
from squelch.cluster.loop.persistence.run_log import RunLog
from squelch.cluster.loop.tickets.playing import Play
from squelch.cluster.loop.watchers.scoring import Scoring
from squelch.cluster.loop.watchers.watcher import Step, Watcher
from squelch.cluster.runs.ending import Ending
from squelch.envs.registry import has_twins
from squelch.kit.records.records import Cluster, Ticket

log = logging.getLogger(__name__)


class Probing(Watcher):
    """When the probe is evaluated, and the play of its tasks."""

    name = "probe"

    def __init__(self, config: RunConfig, play: Play, scoring: Scoring, run_log: RunLog) -> None:
        self.config, self.play, self.tickets = config.scorer.probe, play, _tickets(config)
        self.scoring, self.run_log = scoring, run_log
        self.enabled = config.scorer.enabled and config.scorer.probe.every > 0 and len(self.tickets) > 1
        self._lost: int | None = None
        """The step whose evaluation ended with the process before."""
        self._metrics: dict[str, float] = {}
        twins = self.enabled and has_twins(config.scored.environment.name)
        self._clusters: dict[str, Cluster] | None = None if self.config.scores_twins(twins) else {}
        """The clusters of hard negatives by ticket; None before they are made, which happens once."""

    def due(self, step: int, last: bool) -> bool:
        """Whether to evaluate the probe after this step; 0 is before the first."""
        return self.enabled and (last or step % self.config.every == 0)

    async def begin(self, clock: int) -> None:
        """Evaluates the policy that a new run starts from, or repeats the lost evaluation."""
        lost, self._lost = self._lost, None
        again = lost is not None and 0 < lost == clock and self.due(clock, last=True)
        if again:
            self.scoring.probing = clock  # a stop meanwhile leaves it to the next process
        if again or (clock == 0 and self.due(0, last=False)):
            self.run_log.carry(await self._probe(clock))

    async def after_train(self, step: Step) -> Ending | None:
        """Evaluates after the steps that are due. The last evaluation waits for the one under way, which blocks the
        scorer."""
        if step.is_last and self.scoring.probing is not None:
            await self.scoring.drain_last(step.number)
        self._metrics = await self._probe(step.number) if self.due(step.number, step.is_last) else {}
        return None

    def metrics(self, step: Step) -> dict[str, float]:
        """The seconds of the play after this step."""
        return self._metrics

    async def _probe(self, step: int) -> dict[str, float]:
        """Plays the tasks and hands them to the scorer; the flat metrics of the play."""
        if self.scoring.probe_scorer(step) is None:
            return {}
        started = time.time()
        groups = await self.play.groups(self.tickets)
        if self._clusters is None:
            self._clusters = await self._made_clusters(step)
        self.scoring.probe(step, self.scoring.bundle, groups, self._clusters)
        self.run_log.busy(started, time.time())
        return {"seconds/probe": time.time() - started}

    async def _made_clusters(self, step: int) -> dict[str, Cluster]:
        """The clusters of hard negatives; none if they cannot be made, which is not tried again."""
        started = time.time()
        try:
            return await self.play.clusters(self.tickets)
        except RuntimeError as error:
            log.error("hard negatives are not scored in this run: %s", error)
            self.run_log.event("scorer", "hard_negatives_failed", started, time.time(), step=step, cause=str(error))
            return {}

    def state(self) -> dict[str, Any]:
        """The step whose evaluation is under way."""
        return {"under_way": self.scoring.probing}

    def restore(self, state: dict[str, Any], anew: Collection[str]) -> None:
        """`begin` repeats that evaluation."""
        self._lost = state["under_way"]


def _tickets(config: RunConfig) -> list[Ticket]:
    probe = config.scorer.probe
    count = probe.num_tasks(config.validation.tasks)
    single = validation_tickets(config.scored, count, config.seed, config.sampling.temperature)
    own = {"group_size": probe.num_samples, "most_turns": 1}  # no other turn is scored
    return [replace(ticket, ticket_id=f"probe-{i:03d}", **own) for i, ticket in enumerate(single)]
