"""The tickets of one training step while they are played, and the metrics of its groups; no logic of the loop."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from squelch.actors.endpoint.metrics import agent_metrics
from squelch.actors.play.metrics import trajectory_metrics, turn_metrics
from squelch.cluster.control.autoscaling import StepTimes
from squelch.cluster.loop.tickets.playing import PlayedGroup
from squelch.kit.filter.decisions import Decision, StepDecision
from squelch.kit.records.records import GroupSummary, Ticket


@dataclass
class Window:
    """The tickets and played groups of one step. `issued_at`: unix seconds. `first`: number of tickets that it was
    issued first; those of refill rounds follow them. `times`: seconds of the event loop's clock."""

    step: int
    issued_at: float
    first: int
    times: StepTimes
    tickets: list[Ticket] = field(default_factory=list)
    plays: list[asyncio.Task[PlayedGroup]] = field(default_factory=list)
    groups: dict[str, PlayedGroup] = field(default_factory=dict)
    seconds_filter: float = 0.0

    def played(self) -> list[PlayedGroup]:
        """The groups in order of their tickets, so that sums over them do not depend on the order of arrival."""
        return [self.groups[t.ticket_id] for t in self.tickets if t.ticket_id in self.groups]

    def summaries(self) -> list[GroupSummary]:
        """The summaries of the groups, in the same order."""
        return [group.summary for group in self.played()]

    def metrics(self, decision: StepDecision) -> dict[str, float]:
        """Flat metrics of the step's groups and of the filter's decision on them."""
        summaries = self.summaries()
        by_turn = turn_metrics(summaries, {one.group_id for one in decision.kept})
        return trajectory_metrics(summaries) | agent_metrics(summaries) | by_turn | decision.metrics

    def failure(self, decision: Decision) -> str:
        """The cause why a refused group failed: the most frequent failure of its trajectories, or the filter's code."""
        group = self.groups[decision.group_id]
        causes = [failure.cause.value for failure in group.summary.failures]
        return max(set(causes), key=causes.count) if causes else decision.code
