"""Playing tickets on the fleet: who plays what, and what happens when an actor dies or is late.

The coordinator owns every result: `play` returns a small summary and a table in the object store, so an environment
actor's death never takes a finished group with it. A ticket is played at most `loop.max_attempts` times; then it has
failed, and its rows in the archive say why.

    waits for            unblocked by                      on time-out or death
    a group              the environment actor             the actor is named, replaced if dead; the ticket is replayed
    a worker's tokens    (the environment actor waits)     trajectories fail; if all did and the worker is dead, it is
                                                           replaced and the ticket is replayed
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import ray
from ray.exceptions import RayError

from actors.failures import Failure, FailureCause
from actors.process.ray_errors import DEAD
from actors.records import Group, GroupSummary, Ticket, Trajectory, summarise, to_table
from cluster.config import RunConfig
from cluster.fleet.fleet import Fleet, bounded

HEALTH_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class PlayedGroup:
    """A ticket's result. `table` is an object reference to its rows (`TRAJECTORY_SCHEMA`)."""

    ticket: Ticket
    summary: GroupSummary
    table: Any


class Play:
    """Spreads tickets over environment actors and rollout workers; a group stays on one worker."""

    def __init__(self, config: RunConfig, fleet: Fleet) -> None:
        self.config = config
        self.fleet = fleet
        self._turn = itertools.count()

    async def group(self, ticket: Ticket) -> PlayedGroup:
        """Plays one ticket; always returns, at worst with every trajectory failed."""
        failure = Failure(FailureCause.ACTOR_ERROR, "not played yet")
        for _ in range(self.config.loop.max_attempts):
            await self.fleet.need_worker()
            player, worker = self._assign()
            placed = replace(ticket, worker=worker)
            handle, worker_handle = self.fleet.players[player], self.fleet.workers[worker]
            summary_ref, table_ref = handle.play.options(num_returns=2).remote(placed)
            try:
                summary = await bounded(summary_ref, self.config.loop.group_timeout_s)
            except TimeoutError:
                failure = Failure(FailureCause.GROUP_TIMEOUT, f"{player} did not return {ticket.ticket_id} in time")
                ray.cancel(summary_ref, force=False)
            except asyncio.CancelledError:
                ray.cancel(summary_ref, force=False)
                raise
            except DEAD as error:
                failure = Failure(FailureCause.ACTOR_DIED, player)
                await self.fleet.replace_player(player, handle, str(error))
            except RayError as error:
                failure = Failure(FailureCause.ACTOR_ERROR, f"{player}: {error}".splitlines()[0][:300])
            else:
                if summary.indices or not await self._worker_is_dead(worker, worker_handle, summary):
                    return PlayedGroup(placed, summary, table_ref)
                failure = Failure(FailureCause.WORKER_DIED, worker)
        return unplayable(ticket, failure)

    def _assign(self) -> tuple[str, str]:
        turn = next(self._turn)
        players, workers = list(self.fleet.players), list(self.fleet.workers)
        return players[turn % len(players)], workers[turn % len(workers)]

    async def _worker_is_dead(self, name: str, handle: Any, summary: GroupSummary) -> bool:
        """Whether the group failed because its worker is dead; then the fleet has been told."""
        if not all(failure.cause.in_generation for failure in summary.failures):
            return False
        if self.fleet.workers.get(name) is not handle:
            return True
        try:
            await bounded(handle.health.remote(), HEALTH_TIMEOUT_S)
        except (RayError, TimeoutError) as error:
            self.fleet.lose_worker(name, handle, repr(error)[:300])
            return True
        return False

    async def validate(self, tickets: list[Ticket]) -> tuple[np.ndarray, list[GroupSummary]]:
        """Success (num_tickets,) of one trajectory a ticket, in order, with the summaries; a failure is no success.

        Each environment actor plays a share of the tickets in one call; a dead one is replaced and its share replayed,
        as are the tickets of a rollout worker that died.
        """
        found: dict[str, GroupSummary] = {}
        for _ in range(self.config.loop.max_attempts):
            await self.fleet.need_worker()
            handles = dict(self.fleet.workers)
            found |= await self._validate_once([t for t in tickets if t.ticket_id not in found], list(handles))
            lost = [s for s in found.values() if not s.indices]
            dead = [s.group_id for s in lost if await self._worker_is_dead(s.worker, handles.get(s.worker), s)]
            if not dead:
                break
            found = {group_id: summary for group_id, summary in found.items() if group_id not in dead}
        missing = len(tickets) - len(found)
        if missing:
            raise RuntimeError(f"validation: rollout workers died under {missing} tasks, loop.max_attempts times")
        ordered = [found[t.ticket_id] for t in tickets]
        return np.array([bool(len(s.successes) and s.successes[0]) for s in ordered]), ordered

    async def _validate_once(self, tickets: list[Ticket], workers: list[str]) -> dict[str, GroupSummary]:
        players = list(self.fleet.players)
        placed = [replace(t, worker=workers[i % len(workers)]) for i, t in enumerate(tickets)]
        shares = [placed[i :: len(players)] for i in range(len(players))]
        results = await asyncio.gather(*(self._evaluate(p, s) for p, s in zip(players, shares, strict=True) if s))
        return {summary.group_id: summary for share in results for summary in share}

    async def _evaluate(self, player: str, tickets: list[Ticket]) -> list[GroupSummary]:
        cause = ""
        for _ in range(self.config.loop.max_attempts):
            handle = self.fleet.players[player]
            ref, _ = handle.evaluate.options(num_returns=2).remote(tickets)
            try:
                return await bounded(ref, self.config.loop.group_timeout_s)
            except DEAD as error:
                cause = str(error)
                await self.fleet.replace_player(player, handle, cause)
            except TimeoutError:
                ray.cancel(ref, force=False)  # or it would be played beside its replay
                cause = f"no answer within loop.group_timeout_s={self.config.loop.group_timeout_s:g}"
        raise RuntimeError(f"validation: {player} failed {self.config.loop.max_attempts} times; last cause: {cause}")


def unplayable(ticket: Ticket, failure: Failure) -> PlayedGroup:
    """The record of a ticket that no actor could play: every trajectory failed in this way."""
    empty = np.zeros(0, np.int32), np.zeros(0, bool), np.zeros(0, np.float32)
    trajectories = [Trajectory(i, *empty, [], False, False, failure) for i in range(ticket.group_size)]
    group = Group(ticket, "", trajectories)
    return PlayedGroup(ticket, summarise(group), ray.put(to_table(group)))


async def fetch(groups: list[PlayedGroup], timeout_s: float = 60.0) -> list[pa.Table]:
    """The groups' rows, from the object store; TimeoutError when they do not come in time."""
    return await asyncio.to_thread(ray.get, [g.table for g in groups], timeout=timeout_s)
