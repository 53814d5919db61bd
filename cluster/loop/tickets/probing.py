"""Plays the tasks of the fixed probe (`actors.scorer.probe_scoring`).

The probe is read before step 1, every `scorer.probe.every` steps, and after the last.

The tasks are the first of the fixed validation tasks, which are never trained on, and their request seeds are the same
at every reading. Their first turns, the only ones that are read, are played while no version is published, so that one
version samples them all. Their groups are neither in the ledger nor in the archive. The scorer reads them while
training goes on (`cluster.loop.scoring`).

    waits for        unblocked by         on time-out or death
    the tasks        environment actors   the ticket is played again or fails (cluster.loop.tickets.playing)
"""

from __future__ import annotations

from dataclasses import replace

from squelch.actors.records import Ticket
from squelch.cluster.config import RunConfig
from squelch.cluster.control.admission import validation_tickets
from squelch.cluster.loop.tickets.playing import Play, PlayedGroup


class Probing:
    """When the probe is read, and the play of its tasks."""

    def __init__(self, config: RunConfig, play: Play) -> None:
        self.config, self.play, self.tickets = config.scorer.probe, play, _tickets(config)
        self.enabled = config.scorer.enabled and config.scorer.probe.every > 0 and len(self.tickets) > 1

    def due(self, step: int, last: bool) -> bool:
        """Whether to read the probe after this step; 0 is before the first."""
        return self.enabled and (last or step % self.config.every == 0)

    async def groups(self) -> list[PlayedGroup]:
        """Plays every task under the current version; the groups are in the order of the tasks."""
        return await self.play.groups(self.tickets)


def _tickets(config: RunConfig) -> list[Ticket]:
    probe = config.scorer.probe
    count = probe.num_tasks(config.validation.tasks)
    single = validation_tickets(config.environment, count, config.seed, config.sampling.temperature)
    own = {"group_size": probe.num_samples, "most_turns": 1}  # no other turn is read
    return [replace(ticket, ticket_id=f"probe-{i:03d}", **own) for i, ticket in enumerate(single)]
