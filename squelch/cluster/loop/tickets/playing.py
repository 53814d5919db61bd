"""Plays tickets on the fleet: assigns them to actors, and retries them if an actor dies or is late.

The coordinator owns every result: an environment actor returns a small summary and a reference to the rows, which it
does not own, so its death never loses a finished group. A ticket is played at most `loop.max_attempts` times; then it
has failed, and its rows in the archive state the cause.

    waits for          unblocked by                      on time-out or death
    a healthy member   a join or a replacement           RuntimeError if none is joining (cluster.fleet.pool)
    a group            the environment actor             it is named, replaced if dead; the ticket is retried
    a worker's tokens  (the environment actor waits)     trajectories fail; if the worker is dead, it is replaced and
                                                         the ticket is retried
    a validation's     the environment actor             as a group; the run ends after `loop.max_attempts`
    batch of tasks
    a member that is   -                                 its calls end at once (`CutOff`); the tickets are retried,
    removed at once                                      which does not count as an attempt
    a group's rows     the object store                  TimeoutError; the run ends
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from squelch.cluster.config import RunConfig
from squelch.cluster.control.actor_errors import ActorError, Died, reason_of
from squelch.cluster.control.calls import CLUSTERS, EVALUATE, INTERVENE, PLAY, Payload
from squelch.cluster.control.client import Client
from squelch.cluster.control.membership import CutOff, Member, at_work
from squelch.cluster.fleet.fleet import Fleet
from squelch.kit.archive.rows import to_table
from squelch.kit.diagnosis.interventions import TURNS_AT_ONCE, Intervention, LeftOut, Swap
from squelch.kit.records.failures import Failure, FailureCause
from squelch.kit.records.records import Cluster, Group, GroupSummary, Ticket, Trajectory, summarise

T = TypeVar("T")
R = TypeVar("R")
FETCH_TIMEOUT_S = 60.0


def failures(played: Sequence[GroupSummary]) -> list[Failure]:
    """The failures of all trajectories."""
    return [failure for summary in played for failure in summary.failures]


def interventions_failed(found: Sequence[Intervention | LeftOut]) -> list[Failure]:
    """The failures for which tasks have no intervention."""
    return [one.failure for one in found if isinstance(one, LeftOut) and one.failure is not None]


def causes(failed: Iterable[Failure]) -> Counter[str]:
    """Number of failures by cause."""
    return Counter(str(failure.cause) for failure in failed)


def counted(failed: Sequence[Failure]) -> str:
    """The numbers of failures by cause, with one detail of each."""
    details = {str(failure.cause): f" (one: {failure.detail})" for failure in failed if failure.detail}
    return ", ".join(f"{cause} {count}{details.get(cause, '')}" for cause, count in causes(failed).most_common())


def failed_text(failed: Sequence[Failure], played: int, what: str = "validation tasks") -> str:
    """The message about failed trajectories of `played`, by cause, with one detail of each; empty if none failed."""
    return f"{len(failed)} of {played} {what} failed and count as no success: {counted(failed)}" if failed else ""


class _Unplayed(Exception):
    """A ticket, or a batch of them, has failed `loop.max_attempts` times. Its cause is the error of the last attempt,
    if the actor raised one."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure


@dataclass(frozen=True)
class PlayedGroup:
    """The result of a ticket. `table`: reference to its rows (`TRAJECTORY_SCHEMA`)."""

    ticket: Ticket
    summary: GroupSummary
    table: Payload


class Play:
    """Distributes tickets over environment actors and rollout workers; one worker samples a whole group or batch."""

    def __init__(self, config: RunConfig, fleet: Fleet) -> None:
        self.config, self.fleet = config, fleet
        self._turn = itertools.count()

    async def group(self, ticket: Ticket) -> PlayedGroup:
        """Plays one ticket. A ticket that cannot be played yields a group in which every trajectory failed."""

        async def play(player: Client, worker: str) -> PlayedGroup:
            placed = replace(ticket, worker=worker)
            return PlayedGroup(placed, *await player.call(PLAY, placed))

        try:
            return await self._attempts(ticket.ticket_id, play, lambda played: played.summary.failures)
        except _Unplayed as error:
            return self._unplayable(ticket, error.failure)

    async def _attempts(
        self, what: str, play: Callable[[Client, str], Coroutine[Any, Any, T]], failed: Callable[[T], Iterable[Failure]]
    ) -> T:
        """The result of `play` on an environment actor and the rollout worker of this name. If an actor is dead, is
        late or raises, `play` is retried on the next of both; _Unplayed after `loop.max_attempts`. `failed`: the
        failures within a result, which may show that the worker is dead."""
        cause: ActorError | None = None
        player: Member[Client] | None = None
        failure, attempts = Failure(FailureCause.ACTOR_ERROR, "not played yet"), 0
        while attempts < self.config.loop.max_attempts:
            player, worker = await self._assign(player)
            attempts += 1
            try:
                result = await at_work(play(player.actor, worker.name), player, worker)
            except CutOff:
                attempts -= 1
            except TimeoutError:
                failure, cause = (
                    Failure(FailureCause.GROUP_TIMEOUT, f"{player.name} did not return {what} in time"),
                    None,
                )
            except Died as error:
                failure, cause = Failure(FailureCause.ACTOR_DIED, player.name), error
                self.fleet.player_pool.on_death(player, str(error))
            except ActorError as error:
                text = f"{player.name}: {reason_of(error)}".splitlines()[0][:300]
                failure, cause = Failure(FailureCause.ACTOR_ERROR, text), error
            else:
                # a dead worker is replaced, and none of the group's trajectories is trained on alone: those that ended
                # early would be too many of them
                suspect = any(one.cause.in_generation for one in failed(result))
                if not (suspect and await self.fleet.suspect_worker(worker)):
                    return result
                failure, cause = Failure(FailureCause.WORKER_DIED, worker.name), None
        raise _Unplayed(failure) from cause

    async def _assign(self, failed: Member[Client] | None) -> tuple[Member[Client], Member[Client]]:
        """The next environment actor and rollout worker, round-robin, as soon as one of each is healthy. The actor that
        has just `failed` is skipped if there is another."""
        await self.fleet.player_pool.need()
        while not (await self.fleet.worker_pool.need() and self.fleet.players.healthy()):
            await self.fleet.player_pool.need()
        turn = next(self._turn)
        player = self.fleet.players.in_turn(turn)
        return self.fleet.players.in_turn(turn + 1) if player is failed else player, self.fleet.workers.in_turn(turn)

    def _unplayable(self, ticket: Ticket, failure: Failure) -> PlayedGroup:
        """The result of a ticket that no actor could play: every trajectory has this failure."""
        empty = np.zeros(0, np.int32), np.zeros(0, bool), np.zeros(0, np.float32)
        trajectories = [Trajectory(i, *empty, [], False, False, failure) for i in range(ticket.group_size)]
        group = Group(ticket, "", trajectories)
        return PlayedGroup(ticket, summarise(group), self.fleet.actors.payloads.put(to_table(group)))

    async def groups(self, tickets: Sequence[Ticket]) -> list[PlayedGroup]:
        """Plays tickets of one group size, in their order, as many groups at a time as the engines hold (`slots`).
        Raises as `group`."""
        slots = await self.slots(tickets[0].group_size)

        async def play(ticket: Ticket) -> PlayedGroup:
            async with slots:
                return await self.group(ticket)

        return await asyncio.gather(*map(play, tickets))

    async def clusters(self, tickets: Sequence[Ticket]) -> dict[str, Cluster]:
        """The clusters of hard negatives of the tickets' tasks, by ticket id. RuntimeError if no environment actor made
        them in `loop.max_attempts` attempts."""

        async def ask(player: Client, worker: str) -> dict[str, Cluster]:
            return await player.call(CLUSTERS, list(tickets))

        return await self._required("the clusters of hard negatives", ask, lambda _: [])

    # -- validation ------------------------------------------------------------------------------------------------

    async def validate(self, tickets: list[Ticket]) -> tuple[np.ndarray, list[GroupSummary]]:
        """Success (num_tickets,), bool, of one trajectory per ticket, and the summaries, both in the order of the
        tickets. A failed trajectory counts as no success; `failures` says which failed.

        The tickets are played in batches of as many trajectories as a group has; a batch has the time of a group. As
        many batches are played at a time as the engines hold (`slots`); training groups that are already issued play
        beside them.

        Raises:
            RuntimeError: a batch was not played in `loop.max_attempts` attempts.
        """
        summaries = await self._in_batches(tickets, 1, self._batch)
        return np.array([bool(len(s.successes) and s.successes[0]) for s in summaries]), summaries

    async def intervene(self, swaps: list[Swap]) -> list[Intervention | LeftOut]:
        """The interventions of these tasks, in their order; batches, time and errors as in `validate`."""
        return await self._in_batches(swaps, TURNS_AT_ONCE, self._batch_of_swaps)

    async def _in_batches(
        self, tasks: list[T], sequences: int, play: Callable[[list[T]], Coroutine[Any, Any, list[R]]]
    ) -> list[R]:
        """The results of `play` on the tasks, in their order. `sequences`: those that one task samples at a time."""
        size = max(1, min(self.config.sampling.group_size, self.config.rollout.max_num_seqs) // sequences)
        slots = await self.slots(size * sequences)

        async def play_in_slot(batch: list[T]) -> list[R]:
            async with slots:
                return await play(batch)

        batches = [asyncio.create_task(play_in_slot(tasks[i : i + size])) for i in range(0, len(tasks), size)]
        try:
            return [result for results in await asyncio.gather(*batches) for result in results]
        finally:
            for batch in batches:
                batch.cancel()
            await asyncio.gather(*batches, return_exceptions=True)

    async def slots(self, size: int) -> asyncio.Semaphore:
        """Slots for as many batches or groups of `size` trajectories as the engines hold, at least one: the time-outs
        of a trajectory count the waiting in an engine's queue."""
        sequences = self.config.rollout.max_num_seqs * len(await self.fleet.worker_pool.need())
        return asyncio.Semaphore(max(1, sequences // size))

    async def _batch(self, tickets: list[Ticket]) -> list[GroupSummary]:
        async def play(player: Client, worker: str) -> list[GroupSummary]:
            summaries, _ = await player.call(EVALUATE, [replace(ticket, worker=worker) for ticket in tickets])
            return summaries

        return await self._required(f"{len(tickets)} tasks of a validation", play, failures)

    async def _batch_of_swaps(self, swaps: list[Swap]) -> list[Intervention | LeftOut]:
        async def play(player: Client, worker: str) -> list[Intervention | LeftOut]:
            return await player.call(INTERVENE, [replace(s, ticket=replace(s.ticket, worker=worker)) for s in swaps])

        return await self._required(f"{len(swaps)} tasks of the interventions", play, interventions_failed)

    async def _required(
        self, what: str, play: Callable[[Client, str], Coroutine[Any, Any, T]], failed: Callable[[T], Iterable[Failure]]
    ) -> T:
        """As `_attempts`; RuntimeError after `loop.max_attempts`."""
        try:
            return await self._attempts(what, play, failed)
        except _Unplayed as error:
            text = f"{what} failed loop.max_attempts times; last cause: {error.failure}"
            raise RuntimeError(text) from error.__cause__

    async def rows(self, groups: list[PlayedGroup]) -> list[pa.Table]:
        """The groups' rows; TimeoutError if they do not arrive within `FETCH_TIMEOUT_S`."""
        return await self.fleet.actors.payloads.fetch([g.table for g in groups], FETCH_TIMEOUT_S)
