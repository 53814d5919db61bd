"""Plays tickets on the fleet: assigns them to actors, and plays them again if a party dies or is late.

The coordinator owns every result: an environment actor returns a small summary and a reference to the rows, which it
does not own, so its death never loses a finished group. A ticket is played at most `loop.max_attempts` times; then it
has failed, and its rows in the archive state the cause.

    waits for          unblocked by                      on time-out or death
    a healthy member   a join or a replacement           RuntimeError if none is joining (cluster.fleet.fleet)
    a group            the environment actor             it is named, replaced if dead; the ticket is played again
    a worker's tokens  (the environment actor waits)     trajectories fail; if the worker is dead, it is replaced and
                                                         the ticket is played again
    a validation's     the environment actor             as a group; the run ends after `loop.max_attempts`
    share of tasks
    a member that is   -                                 its calls end at once (`CutOff`); the tickets are played again,
    removed at once                                      which does not count as an attempt
    a group's rows     the object store                  TimeoutError; the run ends
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from actors.archive.rows import to_table
from actors.failures import Failure, FailureCause
from actors.records import Group, GroupSummary, Ticket, Trajectory, summarise
from cluster.config import RunConfig
from cluster.control.membership import CutOff, Member, at_work
from cluster.control.membership import MemberState as State
from cluster.control.parties import Payload, Player, Worker
from cluster.control.party_errors import Died, PartyError, reason_of
from cluster.fleet.fleet import Fleet
from cluster.fleet.waiting import bounded

FETCH_TIMEOUT_S = 60.0


def _failed_in_generation(summary: GroupSummary) -> bool:
    """Whether a trajectory of the group failed while it was sampled, so that its worker may be dead."""
    return any(failure.cause.in_generation for failure in summary.failures)


def failures(played: Sequence[GroupSummary]) -> Counter[str]:
    """Number of failed trajectories by cause."""
    return Counter(str(failure.cause) for summary in played for failure in summary.failures)


def failed_text(failed: Counter[str], tasks: int) -> str:
    """What to tell of the tasks that failed, by cause; empty if none did."""
    causes = ", ".join(f"{cause} {count}" for cause, count in failed.most_common())
    return f"{failed.total()} of {tasks} validation tasks failed and count as no success: {causes}" if failed else ""


@dataclass(frozen=True)
class PlayedGroup:
    """The result of a ticket. `table`: reference to its rows (`TRAJECTORY_SCHEMA`)."""

    ticket: Ticket
    summary: GroupSummary
    table: Payload


class Play:
    """Distributes tickets over environment actors and rollout workers; one worker samples a whole group."""

    def __init__(self, config: RunConfig, fleet: Fleet) -> None:
        self.config, self.fleet = config, fleet
        self._turn = itertools.count()

    async def group(self, ticket: Ticket) -> PlayedGroup:
        """Plays one ticket. A ticket that cannot be played yields a group in which every trajectory failed."""
        failure, attempts = Failure(FailureCause.ACTOR_ERROR, "not played yet"), 0
        while attempts < self.config.loop.max_attempts:
            player, worker = await self._assign()
            placed = replace(ticket, worker=worker.name)
            attempts += 1
            try:
                play = bounded(player.party.play(placed), self.config.loop.group_timeout_s)
                summary, table = await at_work(play, player, worker)
            except CutOff:
                attempts -= 1
            except TimeoutError:
                failure = Failure(
                    FailureCause.GROUP_TIMEOUT, f"{player.name} did not return {ticket.ticket_id} in time"
                )
            except Died as error:
                failure = Failure(FailureCause.ACTOR_DIED, player.name)
                await self.fleet.replace_player(player, str(error))
            except PartyError as error:
                failure = Failure(FailureCause.ACTOR_ERROR, f"{player.name}: {error}".splitlines()[0][:300])
            else:
                if not await self._worker_is_dead(worker, summary):
                    return PlayedGroup(placed, summary, table)
                failure = Failure(FailureCause.WORKER_DIED, worker.name)
        return self._unplayable(ticket, failure)

    async def _assign(self) -> tuple[Member[Player], Member[Worker]]:
        """The next environment actor and rollout worker, round-robin, as soon as there is a healthy one of each."""
        await self.fleet.need_player()
        while not (await self.fleet.need_worker() and self.fleet.players.healthy()):
            await self.fleet.need_player()
        turn = next(self._turn)
        return self.fleet.players.in_turn(turn), self.fleet.workers.in_turn(turn)

    async def _worker_is_dead(self, worker: Member[Worker], summary: GroupSummary) -> bool:
        """Whether trajectories of the group failed because its worker is dead; the fleet has then replaced the worker.
        The others must not be learned from alone: they are those that ended early."""
        return _failed_in_generation(summary) and await self.fleet.suspect_worker(worker)

    def _unplayable(self, ticket: Ticket, failure: Failure) -> PlayedGroup:
        """The result of a ticket that no actor could play: every trajectory has this failure."""
        empty = np.zeros(0, np.int32), np.zeros(0, bool), np.zeros(0, np.float32)
        trajectories = [Trajectory(i, *empty, [], False, False, failure) for i in range(ticket.group_size)]
        group = Group(ticket, "", trajectories)
        return PlayedGroup(ticket, summarise(group), self.fleet.parties.payloads.put(to_table(group)))

    # -- validation ------------------------------------------------------------------------------------------------

    async def validate(self, tickets: list[Ticket]) -> tuple[np.ndarray, list[GroupSummary]]:
        """Success (num_tickets,), bool, of one trajectory per ticket, and the summaries, both in the order of the
        tickets. A failed trajectory counts as no success; `failures` says which failed.

        Each environment actor plays a share of the tickets in one call, as many at a time as the engines hold: the
        time-outs of a trajectory count the waiting in an engine's queue. A dead actor is replaced and its share is
        played again; the tickets of a dead rollout worker are played again too.

        Raises:
            RuntimeError: tasks remain after `loop.max_attempts` attempts.
        """
        found: dict[str, GroupSummary] = {}
        attempts = 0
        while len(found) < len(tickets):
            await self.fleet.need_worker()
            workers = {member.name: member for member in self.fleet.workers.members(State.HEALTHY)}
            played = await self._validate_once([t for t in tickets if t.ticket_id not in found], workers)
            suspects = {s.worker for s in played.values() if _failed_in_generation(s)}
            dead = {name for name in suspects if await self.fleet.suspect_worker(workers[name])}
            lost = {group_id for group_id, s in played.items() if s.worker in dead and _failed_in_generation(s)}
            found |= {group_id: summary for group_id, summary in played.items() if group_id not in lost}
            attempts += bool(lost)
            if attempts == self.config.loop.max_attempts:
                missing = len(tickets) - len(found)
                raise RuntimeError(
                    f"validation: {missing} tasks failed loop.max_attempts times because rollout workers died"
                )
        ordered = [found[t.ticket_id] for t in tickets]
        return np.array([bool(len(s.successes) and s.successes[0]) for s in ordered]), ordered

    async def _validate_once(
        self, tickets: list[Ticket], workers: dict[str, Member[Worker]]
    ) -> dict[str, GroupSummary]:
        """The summaries by ticket; a share of the tickets that was cut off is missing."""
        count, names = len(await self.fleet.need_player()), list(workers)
        placed = [replace(t, worker=names[i % len(names)]) for i, t in enumerate(tickets)]
        shares = [placed[i::count] for i in range(count)]
        at_once = max(1, self.config.rollout.max_num_seqs * len(names) // count)
        calls = (self._evaluate(i, share, at_once, list(workers.values())) for i, share in enumerate(shares) if share)
        results = await asyncio.gather(*calls)
        return {summary.group_id: summary for share in results for summary in share}

    async def _evaluate(
        self, index: int, tickets: list[Ticket], at_once: int, workers: list[Member[Worker]]
    ) -> list[GroupSummary]:
        """Plays one share of the tickets on the `index`-th of the healthy environment actors, which has the time of a
        group for each `at_once` of them; nothing if it was cut off."""
        cause, bound = "", self.config.loop.group_timeout_s * math.ceil(len(tickets) / at_once)
        for _ in range(self.config.loop.max_attempts):
            await self.fleet.need_player()
            player = self.fleet.players.in_turn(index)
            try:
                call = bounded(player.party.evaluate(tickets, at_once), bound)
                return await at_work(call, player, *workers)
            except CutOff:
                return []
            except Died as error:
                cause = f"{player.name} died: {error}"
                await self.fleet.replace_player(player, str(error))
            except PartyError as error:
                cause = f"{player.name}: {reason_of(error)}"
            except TimeoutError:
                each = f"loop.group_timeout_s={self.config.loop.group_timeout_s:g} for each {at_once} of its tasks"
                cause = f"{player.name} gave no answer within {bound:g} s, {each}"
        raise RuntimeError(f"validation: {len(tickets)} tasks failed loop.max_attempts times; last cause: {cause}")

    async def rows(self, groups: list[PlayedGroup]) -> list[pa.Table]:
        """The groups' rows; TimeoutError if they do not arrive within `FETCH_TIMEOUT_S`."""
        return await self.fleet.parties.payloads.fetch([g.table for g in groups], FETCH_TIMEOUT_S)
