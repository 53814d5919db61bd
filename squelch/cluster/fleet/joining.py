"""Joining: how a member that is ready becomes healthy, so that it may get work.

    who joins            waits for                                         unblocked by          on time-out
    environment actor    knows every rollout worker, late ones included    its own answers       another is tried
    rollout worker       every environment actor knows it                  their answers         another is tried
    rollout worker       it has the current weights, and they passed       its parity probe      another is tried
                         the checks
    the same, while a    the recovered weights                             `Published.there`     no bound: the recovery
    learner is lost                                                                              has its own

A worker loads the current version in the background. If a newer version is published meanwhile, it loads the one after
that in the next regular update, together with all other workers, so no update waits for a worker that joins. If no
other worker is healthy, it loads the newer version at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from squelch.actors.messages import WeightBundle
from squelch.cluster.config import RunConfig
from squelch.cluster.control.actor_errors import Died
from squelch.cluster.control.calls import SET_WORKERS, UPDATE_WEIGHTS
from squelch.cluster.control.client import Client, Handle
from squelch.cluster.control.membership import Member, Membership
from squelch.cluster.control.membership import MemberState as State
from squelch.cluster.fleet.waiting import bounded, outcomes, within


class Published:
    """The newest published version of the weights."""

    def __init__(self) -> None:
        self.bundle: WeightBundle | None = None
        """The version; None before the first."""
        self.there = asyncio.Event()
        """Set while the learner that published this version lives: the stored weights are lost with it."""
        self.there.set()


class Joining:
    """Makes the members of a fleet healthy."""

    def __init__(
        self, config: RunConfig, workers: Membership[Client], players: Membership[Client], published: Published
    ) -> None:
        self._workers, self._players, self._published = workers, players, published
        self._introducing = asyncio.Lock()
        self.apart: set[Member[Client]] = set()
        """Workers that are being introduced, or load weights in the background; an update skips them."""
        self.held: dict[str, float] = {}
        """Seconds for which the update that made a worker healthy waited for it alone, by name."""

    async def player(self, member: Member[Client]) -> float:
        """Makes an environment actor healthy once it knows every rollout worker; returns the seconds for which the run
        waited for it, which are none. RuntimeError or TimeoutError if it does not answer."""
        known: dict[str, Handle] | None = None
        while known != (present := {worker.name: worker.actor.handle for worker in self._workers.present()}):
            await within({member.name: member.actor.call(SET_WORKERS, present)}, None, "restart")
            known = present
        self._players.move(member, State.HEALTHY)
        return 0.0

    async def worker(self, member: Member[Client]) -> float:
        """Makes a rollout worker healthy, or returns once it has ended or drains; the seconds for which the run waited
        for it. RuntimeError or TimeoutError if it does not answer or refuses the weights."""
        with self._apart(member):
            self._workers.move(member, State.STALE)
            async with self._introducing:  # the newest list of workers must reach environment actors last
                await self.introduce(self._players.members(State.HEALTHY), self._workers.present())
            await self._load(member)
        while member.state is State.STALE:  # a newer version came meanwhile; the next update loads the one after it
            if self._workers.members(State.HEALTHY, State.SUSPECT):
                await self._workers.change()
            else:
                with self._apart(member):
                    await self._load(member)
        return self.held.pop(member.name, 0.0)

    async def introduce(
        self, players: Sequence[Member[Client]], workers: Sequence[Member[Client]], within_s: float | None = None
    ) -> list[Member[Client]]:
        """Sends the rollout workers' handles to environment actors; a dead actor is noticed at its next call. Returns
        those that do not answer within `within_s`; without it they are an error."""
        known = {member.name: member.actor.handle for member in workers}
        calls = {player: player.actor.call(SET_WORKERS, known) for player in players}
        named = {one.name: call if within_s is None else bounded(call, within_s) for one, call in calls.items()}
        found, late = await outcomes(named), list[Member[Client]]()
        for player in players:
            outcome = found[player.name]
            if isinstance(outcome, TimeoutError) and within_s is not None:
                late.append(player)
            elif isinstance(outcome, BaseException) and not isinstance(outcome, Died):
                raise RuntimeError(f"set_workers: {player.name} failed: {outcome}") from outcome
        return late

    @contextmanager
    def _apart(self, member: Member[Client]) -> Iterator[None]:
        self.apart.add(member)
        try:
            yield
        finally:
            self.apart.discard(member)

    async def _load(self, member: Member[Client]) -> None:
        """Loads the current version in the background. The worker is healthy if no newer version came meanwhile. A
        version that is lost with its learner is loaded once the learner is back."""
        published = self._published
        while True:
            await published.there.wait()
            bundle = published.bundle
            try:
                if bundle is not None:
                    update = member.actor.call(UPDATE_WEIGHTS, bundle)
                    await within({member.name: update}, None, "late join")
                break
            except (RuntimeError, TimeoutError):
                if published.there.is_set() and bundle is published.bundle:
                    raise  # else the learner was replaced meanwhile, and its weights have a new owner
        if bundle is published.bundle and member.state is State.STALE:
            self._workers.move(member, State.HEALTHY)
