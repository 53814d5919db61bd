"""The open steps: their tickets are issued, played, decided on by the filter, and retried if groups are lost.

    waits for                      unblocked by          on time-out
    every ticket of a step         environment actors    retried, or fails (`playing`)
    the filter's decision          filter service        it is ended and replaced (`cluster.loop.filtering`)
    the rows of the step's groups  object store          the step is retried; then the run ends

`cluster.control.admission` decides when a step's tickets are issued, so with `max_staleness` > 0 later steps are played
while one is trained. Invariants: every ticket is in the ledger from its issue on; a step that was trained on is no
longer open, so its tickets are never retried.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from squelch.cluster.config import RunConfig
from squelch.cluster.control.actor_errors import Failed, reason_of
from squelch.cluster.control.admission import Admission, TicketSource
from squelch.cluster.control.autoscaling import StepTimes
from squelch.cluster.control.client import loop_time
from squelch.cluster.control.ledger import BUFFERED, DROPPED, FAILED, KEPT_WAITING, SPARED, Ledger, RetrySteps
from squelch.cluster.fleet.fleet import Fleet
from squelch.cluster.loop.filtering import Filtering
from squelch.cluster.loop.persistence.state import LoopState, pack_ticket
from squelch.cluster.loop.tickets.playing import Play, PlayedGroup
from squelch.cluster.loop.tickets.window import Window
from squelch.kit.filter.decisions import StepDecision
from squelch.kit.filter.windows import make_window
from squelch.kit.records.records import Ticket

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Decided:
    """A step on whose groups the filter has decided. `tables`: their rows, in the order of the tickets."""

    window: Window
    decision: StepDecision
    tables: list[pa.Table]


class OpenSteps:
    """The steps from the first that is not complete to the last whose tickets are issued."""

    def __init__(
        self, config: RunConfig, fleet: Fleet, play: Play, state: LoopState, say: Callable[[str], None]
    ) -> None:
        self.config, self.play, self.say = config, play, say
        self.admission = Admission(config.loop.max_staleness, config.loop.steps, state.clock, state.version)
        self.ledger = Ledger.restore(state.ledger)
        sampled = config.sampling.group_size, config.seed, config.sampling.temperature
        self.source = TicketSource(config.mixture, *sampled, state.cursor)
        self.filtering = Filtering(fleet, state.filter, self._played)
        self.filter_state = state.filter or make_window(config.filter).state()
        """The filter's state after the last step that was trained on."""
        self.windows: dict[int, Window] = {}
        self._resumed: dict[int, list[Ticket]] = {}
        """By step, the tickets that were open when the run was stopped and are not issued again yet."""
        for ticket in state.tickets(config.mixture):
            self._resumed.setdefault(ticket.step, []).append(ticket)
        self._lost: Counter[int] = Counter()
        """Times that rows of a step were lost before it was trained on."""

    # -- tickets -------------------------------------------------------------------------------------------------------

    def issue(self) -> None:
        """Issues the tickets of every step that admission allows. It does so after a stop too: the tickets are then
        cancelled, and a resumed run plays them."""
        while self.admission.open():
            step = self.admission.issue()
            self._start(step, self._resumed.pop(step, None) or self.source.take(step, self.config.loop.prompts))

    def _start(self, step: int, tickets: list[Ticket]) -> None:
        new = Window(step, time.time(), len(tickets), StepTimes(loop_time()))
        window = self.windows.setdefault(step, new)
        for ticket in tickets:
            self.ledger.issue(ticket.ticket_id)
            window.tickets.append(ticket)
            window.plays.append(asyncio.create_task(self._play(window, ticket)))

    async def _play(self, window: Window, ticket: Ticket) -> PlayedGroup:
        group = await self.play.group(ticket)
        window.groups[ticket.ticket_id] = group
        self.ledger.move(ticket.ticket_id, BUFFERED)
        window.times.played = loop_time()
        await self.filtering.admit([group])
        return group

    async def cancel(self) -> None:
        """Cancels every play under way."""
        for window in self.windows.values():
            for play in window.plays:
                play.cancel()
            await asyncio.gather(*window.plays, return_exceptions=True)

    def played(self, step: int) -> tuple[int, int]:
        """The groups of a step that are played, and its tickets. Any thread may call it."""
        window = self.windows.get(step)
        return (len(window.groups), len(window.tickets)) if window is not None else (0, 0)

    def _played(self) -> list[PlayedGroup]:
        return [group for window in self.windows.values() for group in window.groups.values()]

    # -- decisions -----------------------------------------------------------------------------------------------------

    async def decided(self, step: int) -> Decided:
        """Waits for the step's tickets, its refill rounds, the filter's decision and the groups' rows.

        Raises:
            RetrySteps: rows are lost, as with their host; the error itself once that happened `loop.max_attempts`
            times.
        """
        window = self.windows[step]
        window.times.asked = loop_time()
        return Decided(window, await self._decide(window), await self._rows(window))

    async def _decide(self, window: Window) -> StepDecision:
        rounds = 0
        while True:
            await asyncio.gather(*window.plays)
            final = not self.config.filter.refill or rounds >= self.config.filter.max_refill_rounds
            asked = time.time()
            decision = await self.filtering.close(window.step, final, window.first)
            window.seconds_filter += time.time() - asked
            if final or decision.wanted == 0:
                break
            rounds += 1
            self._start(window.step, self.source.take(window.step, decision.wanted, len(window.tickets)))
        return decision

    async def _rows(self, window: Window) -> list[pa.Table]:
        try:
            return await self.play.rows(window.played())
        except (Failed, TimeoutError) as error:
            self._lost[window.step] += 1
            if self._lost[window.step] >= self.config.loop.max_attempts:
                raise
            self.say(f"rows of step {window.step} are lost before it was trained on: {reason_of(error)}")
            raise RetrySteps from error

    def note(self, found: Decided) -> None:
        """Records the filter's decision on each ticket of the step in the ledger."""
        for item in found.decision.kept:
            self.ledger.move(item.group_id, KEPT_WAITING)
        spares = self.config.filter.target != "groups" and bool(found.decision.kept)
        for item in found.decision.dropped:
            self.ledger.move(item.group_id, SPARED if spares else DROPPED, item.code)
        for item in found.decision.refused:
            self.ledger.move(item.group_id, FAILED, found.window.failure(item))

    def staleness(self, kept: list[PlayedGroup]) -> dict[str, float]:
        """The metrics of how many steps the kept groups' weights are behind; RuntimeError if they are too stale."""
        ages = [self.admission.check_staleness(g.summary.version_min) for g in kept] or [0]
        return {"staleness_max": float(max(ages)), "staleness_mean": float(np.mean(ages))}

    # -- the end of a step ---------------------------------------------------------------------------------------------

    def trained(self, step: int) -> None:
        """Closes a step that was trained on: its tickets are never retried."""
        del self.windows[step], self._lost[step]
        self.filter_state = self.filtering.state or self.filter_state

    def complete(self, window: Window, version: int) -> None:
        """Completes a step; `version`: that of its weights, or the one before if it published none."""
        self.admission.complete(window.step, version)
        self.ledger.commit(ticket.ticket_id for ticket in window.tickets)

    def close(self) -> None:
        """Forgets every open step, at the end of the run."""
        self.source.cursor -= len(self._refills())
        self.windows.clear()

    # -- groups that are lost ------------------------------------------------------------------------------------------

    async def reset(self, version: int) -> list[int]:
        """Returns every open step, whose plays are cancelled, to its state before the first play; returns the steps.
        `version`: the newest published one. Refill rounds start over, as after a resume: another number of groups may
        be missing then, and a step must not train on more groups than its first round had."""
        self.admission.renumber(version)
        refills = self._refills()
        for ticket in refills:
            self.ledger.withdraw(ticket.ticket_id)
        self.source.cursor -= len(refills)
        self.windows = {
            window.step: Window(window.step, time.time(), window.first, window.times, window.tickets[: window.first])
            for window in self.windows.values()
        }
        await self.filtering.rewind(self.filter_state, min(self.windows, default=self.admission.next_step) - 1)
        return list(self.windows)

    def retry(self) -> int:
        """Retries the tickets of every open step after a `reset`; returns their number."""
        for window in self.windows.values():
            for ticket in window.tickets:
                self.ledger.retry(ticket.ticket_id)
                window.plays.append(asyncio.create_task(self._play(window, ticket)))
        return sum(len(window.tickets) for window in self.windows.values())

    def _refills(self) -> list[Ticket]:
        """The tickets of refill rounds. They were issued last, because the filter decides on one step at a time."""
        return [ticket for window in self.windows.values() for ticket in window.tickets[window.first :]]

    def open_tickets(self) -> list[dict[str, Any]]:
        """The tickets that a resumed run plays again, without those of refill rounds: the rounds start over, with the
        same tasks."""
        issued = [window.tickets[: window.first] for window in self.windows.values()]
        return [pack_ticket(ticket) for tickets in (*issued, *self._resumed.values()) for ticket in tickets]
