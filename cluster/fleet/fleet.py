"""The fleet: starts the parties of a run, replaces dead parties where that is possible, and stops all of them.

    method             waits for                           unblocked by            on time-out
    `start`            every party to be ready             each party              the run ends; the late are named
    `update_workers`   every stale or healthy worker       its parity probe        the late are named and replaced
    a join (a task)    the new worker, then the boundary   the worker; updates     the worker is ended, another tried
    `need_worker`      a healthy worker                    a join, a health check  RuntimeError if none can become so
    `need_player`      a healthy environment actor         its replacement         RuntimeError if none can become so

The fleet replaces environment actors, rollout workers, the filter service and the scorer after their death, and the
learner with all of its ranks, each as often as the budget allows, with its back-off (`cluster.control.restarts`).
`cluster.fleet.supervision` notices the deaths and ends hung parties. Rollout workers join at a weight boundary: a new
worker is stale until it has loaded the current weights, has passed the checks on them, and is known to every
environment actor. Only healthy members get work (`cluster.control.membership`). The weights of a new learner are made
again by `cluster.loop.recovery`. This module does not import Ray: `Parties` creates the parties.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from actors.messages import UpdateReport, WeightBundle
from cluster.config import RunConfig
from cluster.control.membership import PLAYER_MOVES, WORKER_MOVES, Member, Membership
from cluster.control.membership import MemberState as State
from cluster.control.parties import (
    Died,
    Failed,
    Filter,
    Learner,
    Parties,
    Party,
    PartyError,
    Player,
    Scorer,
    Worker,
    reason_of,
)
from cluster.control.restarts import RestartBudget
from cluster.fleet.waiting import bounded, outcomes, within

log = logging.getLogger(__name__)
P = TypeVar("P", bound=Party)
HEALTH_TIMEOUT_S = 20.0
"""Seconds a suspect rollout worker may take to generate a token."""
GRACE_S = 5.0
"""Seconds more for the answer to arrive, so that the worker itself says that it is late."""


class UpdateFailed(RuntimeError):
    """Rollout workers did not get a version. `members`: each with its error."""

    def __init__(self, members: list[tuple[Member[Worker], BaseException]]) -> None:
        failed = [f"update_weights: {member.name} failed: {reason_of(error)}" for member, error in members]
        super().__init__("; ".join(failed))
        self.members = members


def _retire(members: Membership[P]) -> None:
    for member in members.present():
        member.party.kill()
        members.move(member, State.RETIRED)


class Fleet:
    """Every party of a run, by name."""

    def __init__(self, config: RunConfig, parties: Parties, on_event: Callable[..., None]) -> None:
        self.config, self.parties, self.on_event = config, parties, on_event
        self.workers: Membership[Worker] = Membership("rollout worker", WORKER_MOVES)
        self.players: Membership[Player] = Membership("environment actor", PLAYER_MOVES)
        self.filter: Filter | None = None
        self.scorer: Scorer | None = None
        self.learner: Learner | None = None
        self.condemned: dict[Party, str] = {}
        """Services that have been ended because they were lost or hung, with the cause; their next call fails."""
        self.bundle: WeightBundle | None = None
        """The published version; a worker that joins late loads it."""
        self._boundary = asyncio.Lock()
        self._joins: dict[str, asyncio.Task[None]] = {}
        self._join_failure = ""
        self._join_fault: BaseException | None = None
        self._replacing: set[asyncio.Task[None]] = set()
        cluster = config.cluster
        self._budget = RestartBudget(cluster.max_restarts, cluster.restart_window_s, cluster.restart_backoff_s)
        self.restarts: Counter[str] = Counter()
        self._told: Counter[str] = Counter()

    # -- start and stop --------------------------------------------------------------------------------------------

    async def start(self, learning: bool = True) -> None:
        """Creates all parties and waits until each is ready; a TimeoutError names the late parties.

        With `learning` false only rollout workers and environment actors are started; the workers keep their initial
        weights and count as healthy.
        """
        for i in range(self.config.rollout.count):
            self.workers.join(f"rollout-{i}", self.parties.worker(f"rollout-{i}"))
        for i in range(self.config.environment_actor.count):
            self.players.join(f"env-{i}", self.parties.player(f"env-{i}"))
        starting = [*self.workers.present(), *self.players.present()]
        ready: dict[str, Awaitable[Any]] = {member.name: member.party.ready() for member in starting}
        if learning:
            ready |= self._start_learning()
        try:
            await within(ready, self.config.cluster.start_timeout_s, "start")
        except TimeoutError as error:
            raise TimeoutError(f"{error}; {self.parties.room()}") from error
        for worker in self.workers.present():
            self.workers.move(worker, State.STALE)
            if not learning:
                self.workers.move(worker, State.HEALTHY)
        await self._introduce(self.players.present(), self.workers.present())
        for player in self.players.present():
            self.players.move(player, State.HEALTHY)

    def _start_learning(self) -> dict[str, Awaitable[Any]]:
        self.filter = self.parties.filter()
        self.scorer = self.parties.scorer() if self.config.scorer.enabled else None
        self.learner = self.parties.learner(self.config.learner.ranks)
        ready: dict[str, Awaitable[Any]] = {"filter": self.filter.state(), "learner": self.learner.start()}
        if self.scorer is not None:
            ready["scorer"] = self.scorer.health()
        return ready

    async def stop(self, timeout_s: float = 30.0) -> None:
        """Asks every party to stop and kills the parties that do not stop within `timeout_s`; no process is left."""
        arriving = [*self._joins.values(), *self._replacing]
        for task in arriving:
            task.cancel()
        await asyncio.gather(*arriving, return_exceptions=True)
        calls: dict[str, Awaitable[Any]] = {member.name: member.party.stop() for member in self.workers.present()}
        if self.learner is not None:
            calls["learner"] = self.learner.stop()
        done = await asyncio.gather(*(bounded(call, timeout_s) for call in calls.values()), return_exceptions=True)
        for name, result in zip(calls, done, strict=True):
            if isinstance(result, BaseException):
                log.warning("%s did not stop when asked and is killed: %r", name, result)
        _retire(self.workers)
        _retire(self.players)
        for service in (self.filter, self.scorer, self.learner):
            if service is not None:
                service.kill()

    # -- weights -----------------------------------------------------------------------------------------------------

    async def update_workers(self, bundle: WeightBundle) -> list[UpdateReport]:
        """Loads a version into every rollout worker that is ready. A dead worker is replaced; the new worker joins
        later.

        Raises:
            UpdateFailed: workers are late, or refused the weights, or failed the checks on them; all others have them.
        """
        async with self._boundary:
            self.bundle = bundle
            members = self.workers.members(State.STALE, State.HEALTHY, State.SUSPECT)
            calls = {member.name: member.party.update_weights(bundle) for member in members}
            found = await outcomes(calls, self.config.rollout.update_timeout_s + GRACE_S)
            reports = [self._updated(member, found[member.name]) for member in members]
        if failed := [(m, found[m.name]) for m in members if isinstance(found[m.name], (Failed, TimeoutError))]:
            raise UpdateFailed(failed)
        await self.need_worker()
        return [report for report in reports if report is not None]

    def _updated(self, member: Member[Worker], outcome: Any) -> UpdateReport | None:
        if isinstance(outcome, Died):
            self.lose_worker(member, str(outcome))
        elif not isinstance(outcome, BaseException):
            if member.state is State.STALE:
                self.workers.move(member, State.HEALTHY)
            return outcome
        elif not isinstance(outcome, (Failed, TimeoutError)):
            raise outcome
        return None

    async def _introduce(self, players: list[Member[Player]], workers: list[Member[Worker]]) -> None:
        """Sends the rollout workers' handles to environment actors; a dead actor is noticed at its next call."""
        known = {member.name: member.party for member in workers}
        calls = {player.name: player.party.meet(known) for player in players}
        for name, outcome in (await outcomes(calls, self.config.cluster.start_timeout_s)).items():
            if isinstance(outcome, BaseException) and not isinstance(outcome, Died):
                raise RuntimeError(f"set_workers: {name} failed: {outcome}") from outcome

    # -- members that come and go --------------------------------------------------------------------------------------

    def allow_restart(self, name: str, cause: str) -> float:
        """Counts a restart of the party `name`; returns the seconds to wait before it. RuntimeError with the cause if
        no restart is left."""
        self.restarts[name] += 1
        self.on_event(name, "restart", time.time(), time.time(), cause=cause, count=self.restarts[name])
        log.warning("%s died and is replaced (%d): %s", name, self.restarts[name], cause)
        return self._budget.spend(name, cause, _now())

    async def replace_player(self, dead: Member[Player], cause: str) -> None:
        """Replaces a dead environment actor. The first call for `dead` does so; later calls return at once.

        Raises:
            RuntimeError: no restart is left, or the new actor failed.
            TimeoutError: the new actor is late.
        """
        if dead.state in (State.DEAD, State.RETIRED):
            return
        self.players.move(dead, State.DEAD)
        dead.party.kill()
        replacing = asyncio.create_task(self._bring_up(dead.name, self.allow_restart(dead.name, cause)))
        self._replacing.add(replacing)
        replacing.add_done_callback(self._replaced)
        await asyncio.shield(replacing)  # the caller's ticket may be cancelled; the actor comes up all the same

    def _replaced(self, task: asyncio.Task[None]) -> None:
        self._replacing.discard(task)
        self.players.changed.set()

    async def _bring_up(self, name: str, wait_s: float) -> None:
        await asyncio.sleep(wait_s)
        member = self.players.join(name, self.parties.player(name))
        try:
            await within({member.name: self._prepare(member)}, self.config.cluster.start_timeout_s, "restart")
        except (RuntimeError, TimeoutError):
            self.players.move(member, State.DEAD)
            member.party.kill()
            raise

    async def _prepare(self, player: Member[Player]) -> None:
        """Makes a new environment actor healthy once it knows every rollout worker, including late joiners."""
        await player.party.ready()
        known: dict[str, Worker] | None = None
        while known != (present := {member.name: member.party for member in self.workers.present()}):
            await player.party.meet(present)
            known = present
        self.players.move(player, State.HEALTHY)

    async def suspect_worker(self, member: Member[Worker]) -> bool:
        """Requests a token from a worker after a whole group failed on it; True if it is dead or was replaced since."""
        if self.workers.current(member.name) is not member or member.state not in (State.HEALTHY, State.SUSPECT):
            return True
        if member.state is State.HEALTHY:
            self.workers.move(member, State.SUSPECT)
        try:
            await bounded(member.party.health(HEALTH_TIMEOUT_S), HEALTH_TIMEOUT_S + GRACE_S)
        except (PartyError, TimeoutError) as error:
            self.lose_worker(member, reason_of(error))
            return True
        finally:
            if member.state is State.SUSPECT:
                self.workers.move(member, State.HEALTHY)
        return False

    def lose_worker(self, member: Member[Worker], cause: str) -> None:
        """Removes a dead rollout worker and starts a successor, which joins at a weight boundary."""
        if self.workers.current(member.name) is not member or member.state is State.DEAD:
            return
        self.workers.move(member, State.DEAD)
        member.party.kill()
        self._begin_join(member.name, self.allow_restart(member.name, cause))

    def _begin_join(self, name: str, wait_s: float) -> None:
        self._joins[name] = asyncio.create_task(self._join(name, wait_s))
        self._joins[name].add_done_callback(self._join_ended)

    def _join_ended(self, task: asyncio.Task[None]) -> None:
        """Keeps an error that `_join` does not expect, a bug, so that `need_worker` raises it."""
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._join_fault = fault
        self.workers.changed.set()

    async def _join(self, name: str, wait_s: float) -> None:
        """Lets a new rollout worker join after the back-off. A worker that fails is ended, and another is tried if
        restarts are left."""
        await asyncio.sleep(wait_s)
        member = self.workers.join(name, self.parties.worker(name))
        try:
            await self._take_in(member)
        except (RuntimeError, TimeoutError) as error:
            self._join_failed(member, str(error))

    async def _take_in(self, member: Member[Worker]) -> None:
        name, rollout = member.name, self.config.rollout
        await within({name: member.party.ready()}, rollout.start_timeout_s, "restart")
        self.workers.move(member, State.STALE)
        async with self._boundary:
            if self.bundle is not None:
                update = member.party.update_weights(self.bundle)
                await within({name: update}, rollout.update_timeout_s, "late join")
            workers = [*self.workers.members(State.HEALTHY, State.SUSPECT), member]
            await self._introduce(self.players.members(State.HEALTHY), workers)
            self.workers.move(member, State.HEALTHY)

    def _join_failed(self, member: Member[Worker], cause: str) -> None:
        now, name = time.time(), member.name
        self.on_event(name, "join_failed", now, now, cause=cause)
        log.error("%s: a replacement did not join: %s", name, cause)
        self._join_failure = cause
        if self.workers.current(name) is not member or member.state is State.DEAD:
            return  # it died while environment actors were told of it, and its successor has the name
        self.workers.move(member, State.DEAD)
        member.party.kill()
        if self._budget.left(name, _now()):
            self._begin_join(name, self.allow_restart(name, cause))

    @property
    def joining(self) -> bool:
        """Whether a rollout worker is on its way in, or waits for its back-off."""
        return any(not task.done() for task in self._joins.values())

    async def need_worker(self) -> Mapping[str, Worker]:
        """The healthy rollout workers by name, as soon as there is one; RuntimeError if none is healthy or joining."""
        while not (healthy := self.workers.healthy()):
            if self._join_fault is not None:
                raise self._join_fault
            if not self.workers.present() and not self.joining:
                cause = f"; the last to start failed: {self._join_failure}" if self._join_failure else ""
                raise RuntimeError(f"no rollout worker is left, and none is starting{cause}")
            await self.workers.change()
        return healthy

    async def need_player(self) -> Mapping[str, Player]:
        """The healthy environment actors by name, as soon as there is one; RuntimeError if none is healthy or
        starting."""
        while not (healthy := self.players.healthy()):
            if not self.players.present() and not self._replacing:
                raise RuntimeError("no environment actor is left, and none is starting")
            await self.players.change()
        return healthy

    # -- services --------------------------------------------------------------------------------------------------

    def condemn(self, name: str, party: Party, cause: str) -> None:
        """Ends a filter service or scorer that is lost or hung. It is replaced, with this cause, by whoever calls it
        next."""
        self.condemned[party] = cause
        self.on_event(name, "lost", time.time(), time.time(), cause=cause)
        log.warning("%s is ended: %s", name, cause)
        party.kill()

    async def replace_filter(self, cause: str) -> None:
        """Replaces the filter service by a new one, which holds no groups yet."""
        await asyncio.sleep(self.allow_restart("filter", self._cause(self.filter, cause)))
        self.filter = self.parties.filter()

    async def replace_scorer(self, cause: str) -> None:
        """Replaces the scorer; nothing waits for the new scorer. If no restart is left, the run continues without
        scoring and logs that."""
        lost, self.scorer = self.scorer, None
        cause = self._cause(lost, cause)
        if not self._budget.left("scorer", _now()):
            log.error("the scorer died %d times and is not restarted: %s", self.restarts["scorer"] + 1, cause)
            return
        await asyncio.sleep(self.allow_restart("scorer", cause))
        self.scorer = self.parties.scorer()

    def _cause(self, party: Party | None, cause: str) -> str:
        """The cause for which a service was ended, or else `cause`."""
        return self.condemned.pop(party, cause) if party is not None else cause

    def replace_learner(self, ranks: int) -> None:
        """Replaces the ended learner by a new one, which has not been started yet."""
        self.learner = self.parties.learner(ranks)

    # -- figures -----------------------------------------------------------------------------------------------------

    def members(self) -> list[Member[Any]]:
        """The newest member of each name: rollout workers, then environment actors."""
        return [*self.workers.members(), *self.players.members()]

    def take_restarts(self) -> Counter[str]:
        """Number of restarts by party since the last call."""
        news = self.restarts - self._told
        self._told = Counter(self.restarts)
        return news

    def up(self) -> dict[str, bool]:
        """Whether each party is up, by name; a party that died and was not replaced is down. A member that left in good
        order is no party any more."""
        members = [member for member in self.members() if member.state is not State.RETIRED]
        services: dict[str, Party | None] = {"filter": self.filter, "learner": self.learner}
        if self.config.scorer.enabled:
            services["scorer"] = self.scorer
        up = {name: party is not None and party not in self.condemned for name, party in services.items()}
        return {member.name: member.state in UP for member in members} | up


def _now() -> float:
    return asyncio.get_running_loop().time()


UP = frozenset({State.HEALTHY, State.SUSPECT, State.DRAINING})
"""States in which a member counts as up."""


def party_names(config: RunConfig) -> tuple[list[str], list[str]]:
    """Names of the rollout workers, and of all parties, with which a run starts; they seed the metrics' series."""
    workers = [f"rollout-{i}" for i in range(config.rollout.count)]
    players = [f"env-{i}" for i in range(config.environment_actor.count)]
    return workers, [*workers, *players, "filter", "learner", *(["scorer"] if config.scorer.enabled else [])]
