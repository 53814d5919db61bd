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
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import ray
from ray.exceptions import RayActorError, RayError

from actors.messages import WeightBundle
from actors.records import Group, GroupSummary, Ticket, Trajectory, summarise, to_table
from cluster.config import RunConfig
from cluster.fleet import Fleet

HEALTH_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class PlayedGroup:
    """A ticket's result. `table` is an object reference to its rows (`TRAJECTORY_SCHEMA`)."""

    ticket: Ticket
    summary: GroupSummary
    table: Any


class Play:
    """Spreads tickets over environment actors and rollout workers; a group stays on one worker."""

    def __init__(self, config: RunConfig, fleet: Fleet, current_bundle: Callable[[], WeightBundle]) -> None:
        self.config = config
        self.fleet = fleet
        self.current_bundle = current_bundle
        self._turn = itertools.count()

    async def group(self, ticket: Ticket) -> PlayedGroup:
        """Plays one ticket; always returns, at worst with every trajectory failed."""
        cause = ""
        for _ in range(self.config.loop.max_attempts):
            player, worker = self._assign()
            placed = replace(ticket, worker=worker)
            handle, worker_handle = self.fleet.players[player], self.fleet.workers[worker]
            summary_ref, table_ref = handle.play.options(num_returns=2).remote(placed)
            try:
                summary = await asyncio.wait_for(_await(summary_ref), self.config.loop.group_timeout_s)
            except TimeoutError:
                cause = f"group_timeout: {player} did not return {ticket.ticket_id} in time"
                ray.cancel(summary_ref, force=False)
            except asyncio.CancelledError:
                ray.cancel(summary_ref, force=False)
                raise
            except RayActorError as error:
                cause = f"actor_died: {player}"
                await self.fleet.replace_player(player, handle, str(error))
            except RayError as error:
                cause = f"actor_error: {player}: {error}".splitlines()[0][:300]
            else:
                if summary.indices or not await self._worker_was_at_fault(worker, worker_handle, summary):
                    return PlayedGroup(placed, summary, table_ref)
                cause = f"worker_died: {worker}"
        return unplayable(ticket, cause)

    def _assign(self) -> tuple[str, str]:
        turn = next(self._turn)
        players, workers = list(self.fleet.players), list(self.fleet.workers)
        return players[turn % len(players)], workers[turn % len(workers)]

    async def _worker_was_at_fault(self, name: str, handle: Any, summary: GroupSummary) -> bool:
        """Whether the group failed because its worker is dead; then the worker has been replaced."""
        if not all(reason.startswith("generation") for reason in summary.failures):
            return False
        if self.fleet.workers[name] is not handle:
            return True
        try:
            await asyncio.wait_for(_await(handle.health.remote()), HEALTH_TIMEOUT_S)
        except (RayError, TimeoutError) as error:
            await self.fleet.replace_worker(name, handle, self.current_bundle(), repr(error)[:300])
            return True
        return False

    async def validate(self, tickets: list[Ticket]) -> tuple[np.ndarray, list[GroupSummary]]:
        """Success (num_tickets,) of one trajectory a ticket, in order, with the summaries; a failure is no success.

        Each environment actor plays a share of the tickets in one call; a dead one is replaced and its share replayed.
        """
        players, workers = list(self.fleet.players), list(self.fleet.workers)
        placed = [replace(t, worker=workers[i % len(workers)]) for i, t in enumerate(tickets)]
        shares = [placed[i :: len(players)] for i in range(len(players))]
        results = await asyncio.gather(*(self._evaluate(p, s) for p, s in zip(players, shares, strict=True) if s))
        summaries = {summary.group_id: summary for share in results for summary in share}
        ordered = [summaries[t.ticket_id] for t in tickets]
        return np.array([bool(len(s.successes) and s.successes[0]) for s in ordered]), ordered

    async def _evaluate(self, player: str, tickets: list[Ticket]) -> list[GroupSummary]:
        cause = ""
        for _ in range(self.config.loop.max_attempts):
            handle = self.fleet.players[player]
            ref, _ = handle.evaluate.options(num_returns=2).remote(tickets)
            try:
                return await asyncio.wait_for(_await(ref), self.config.loop.group_timeout_s)
            except RayActorError as error:
                cause = str(error)
                await self.fleet.replace_player(player, handle, cause)
            except TimeoutError:
                cause = f"no answer within loop.group_timeout_s={self.config.loop.group_timeout_s:g}"
        raise RuntimeError(f"validation: {player} failed {self.config.loop.max_attempts} times; last cause: {cause}")


def unplayable(ticket: Ticket, cause: str) -> PlayedGroup:
    """The record of a ticket that no actor could play: every trajectory failed with the cause."""
    empty = np.zeros(0, np.int32), np.zeros(0, bool), np.zeros(0, np.float32)
    trajectories = [Trajectory(i, *empty, [], False, False, cause) for i in range(ticket.group_size)]
    group = Group(ticket, "", trajectories)
    return PlayedGroup(ticket, summarise(group), ray.put(to_table(group)))


async def fetch(groups: list[PlayedGroup], timeout_s: float = 60.0) -> list[pa.Table]:
    """The groups' rows, from the object store."""
    started = time.monotonic()
    tables = await asyncio.to_thread(ray.get, [g.table for g in groups], timeout=timeout_s)
    if time.monotonic() - started > timeout_s:
        raise TimeoutError(f"the object store took over {timeout_s:g} s for {len(groups)} groups")
    return tables


async def _await(ref: Any) -> Any:
    return await ref
