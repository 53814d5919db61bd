"""The fleet: starts the parties of a run, replaces dead parties where that is possible, and stops all of them.

    method             waits for                           unblocked by            on time-out
    `start`            every party to be ready             each party              the run ends; the late are named
    `update_workers`   every worker that is ready          its parity probe        the late are named and replaced
    a join (a task)    the new worker, then its weights    the worker; updates     the worker is ended, another tried
    `begin_player`     the new environment actor           the actor               the actor is ended, another tried
    `need_worker`      a healthy worker                    a join, a health check  RuntimeError if none can become so
    `need_player`      a healthy environment actor         its replacement         RuntimeError if none can become so

The fleet replaces environment actors, rollout workers, the filter service and the scorer after their death, and the
learner with all of its ranks, each as often as the budget allows, with its back-off (`cluster.control.restarts`).
`cluster.fleet.supervision` notices the deaths and ends hung parties; `cluster.fleet.resizing` changes the numbers of
rollout workers and environment actors. A new worker is stale until it is known to every environment actor, has loaded
the current weights and has passed the checks on them. It loads them beside the run; if a newer version is published
meanwhile, the next update brings it the one after that, together with all others, so that no update ever waits for a
worker that joins. Only healthy members get work (`cluster.control.membership`). The weights of a new learner are made
again by `cluster.loop.learner_side.recovery`. This module does not import Ray: `Actors` creates the parties.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from squelch.actors.messages import UpdateReport, WeightBundle
from squelch.cluster.config import RunConfig
from squelch.cluster.control.actor_errors import ActorError, Died, Failed, reason_of
from squelch.cluster.control.membership import FINAL, PLAYER_MOVES, WORKER_MOVES, Member, Membership
from squelch.cluster.control.membership import MemberState as State
from squelch.cluster.control.protocols import Actor, Actors, Filter, Learner, Player, Scorer, Worker
from squelch.cluster.control.restarts import RestartBudget
from squelch.cluster.control.scaling import Kind, start_names
from squelch.cluster.fleet.delivery import Delivery
from squelch.cluster.fleet.resizing import Resizing
from squelch.cluster.fleet.waiting import bounded, outcomes, within
from squelch.cluster.own_thread import OwnThread

log = logging.getLogger(__name__)
P = TypeVar("P", bound=Actor)
T = TypeVar("T")
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
        member.actor.kill()
        members.move(member, State.RETIRED)


class Fleet:
    """Every party of a run, by name."""

    def __init__(self, config: RunConfig, actors: Actors, on_event: Callable[..., None]) -> None:
        self.config, self.actors, self.on_event = config, actors, on_event
        self.workers: Membership[Worker] = Membership("rollout worker", WORKER_MOVES)
        self.players: Membership[Player] = Membership("environment actor", PLAYER_MOVES)
        self.filter: Filter | None = None
        self.scorer: Scorer | None = None
        self.learner: Learner | None = None
        self.condemned: dict[Actor, str] = {}
        """Services that have been ended because they were lost or hung, with the cause; their next call fails."""
        self.bundle: WeightBundle | None = None
        """The published version; a worker that joins late loads it."""
        self.weights = asyncio.Event()
        """Set while there is a learner that has the published version; a worker that joins waits for it."""
        self.weights.set()
        self._introducing = asyncio.Lock()
        self._joining: set[Member[Worker]] = set()
        """Workers that are being introduced, or load weights beside the run; an update leaves them alone."""
        self.creating: dict[Kind, set[str]] = {kind: set() for kind in Kind}
        """Names of the members whose processes are being created."""
        self._held: dict[str, float] = {}
        self._delivery = Delivery(config.rollout, config.weight_transfer, on_event)
        self._joins: dict[str, asyncio.Task[None]] = {}
        self._join_failure = self._player_failure = ""
        """Why the last rollout worker, or environment actor, that was started later did not come up."""
        self._join_fault: BaseException | None = None
        self._replacing: dict[str, asyncio.Task[None]] = {}
        cluster = config.cluster
        self._budget = RestartBudget(cluster.max_restarts, cluster.restart_window_s, cluster.restart_backoff_s)
        self.restarts: Counter[str] = Counter()
        self._told: Counter[str] = Counter()
        self._counted = set(actor_names(config)[1])
        """Parties whose counter of restarts has begun; for those of the start the exporter has begun it."""
        self.resizing = Resizing(self)

    # -- start and stop --------------------------------------------------------------------------------------------

    async def start(self, learning: bool = True) -> None:
        """Creates all parties and waits until each is ready; a TimeoutError names the late parties.

        With `learning` false only rollout workers and environment actors are started; the workers keep their initial
        weights and count as healthy.
        """
        for name in start_names(self.config, Kind.ROLLOUT):
            self.workers.join(name, self.actors.worker(name))
        for name in start_names(self.config, Kind.ENVIRONMENT):
            self.players.join(name, self.actors.player(name))
        starting = [*self.workers.present(), *self.players.present()]
        ready: dict[str, Awaitable[Any]] = {member.name: member.actor.ready() for member in starting}
        if learning:
            ready |= self._start_learning()
        try:
            await within(ready, self.config.cluster.start_timeout_s, "start")
        except TimeoutError as error:
            raise TimeoutError(f"{error}; {self.actors.room()}") from error
        for worker in self.workers.present():
            self.workers.move(worker, State.STALE)
            if not learning:
                self.workers.move(worker, State.HEALTHY)
        await self._introduce(self.players.present(), self.workers.present())
        for player in self.players.present():
            self.players.move(player, State.HEALTHY)

    def _start_learning(self) -> dict[str, Awaitable[Any]]:
        self.filter = self.actors.filter()
        self.scorer = self.actors.scorer() if self.config.scorer.enabled else None
        self.learner = self.actors.learner(self.config.learner.ranks)
        ready: dict[str, Awaitable[Any]] = {"filter": self.filter.state(), "learner": self.learner.start()}
        if self.scorer is not None:
            ready["scorer"] = self.scorer.health()
        return ready

    async def stop(self, timeout_s: float = 30.0) -> None:
        """Asks every party to stop and kills the parties that do not stop within `timeout_s`; no process is left."""
        await self.resizing.stop()
        arriving = [*self._joins.values(), *self._replacing.values()]
        for task in arriving:
            task.cancel()
        await asyncio.gather(*arriving, return_exceptions=True)
        calls: dict[str, Awaitable[Any]] = {member.name: member.actor.stop() for member in self.workers.present()}
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
            SenderLost: the learner failed in a broadcast.
        """
        self.bundle = bundle
        self.weights.set()
        ready = self.workers.members(State.STALE, State.HEALTHY, State.SUSPECT)
        members = [member for member in ready if member not in self._joining]
        new = {member.name for member in members if member.state is State.STALE}
        found, ended = await self._delivery.bring(bundle, members, self.learner)
        last = max((ended[name] for name in ended.keys() - new), default=_now())
        self._held |= {name: max(0.0, ended[name] - last) for name in new & ended.keys()}
        reports = [self._updated(member, found[member.name]) for member in members]
        late = [member for member in members if isinstance(found[member.name], (Failed, TimeoutError))]
        if failed := [(member, found[member.name]) for member in late if not self._left(member)]:
            raise UpdateFailed(failed)
        await self.need_worker()
        return [report for report in reports if report is not None]

    @staticmethod
    def _left(member: Member[Worker]) -> bool:
        """Whether a worker was told to leave while it loaded weights."""
        return member.state in FINAL or member.state is State.DRAINING

    def _updated(self, member: Member[Worker], outcome: Any) -> UpdateReport | None:
        if self._left(member):
            return None
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
        known = {member.name: member.actor for member in workers}
        calls = {player.name: player.actor.meet(known) for player in players}
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

        A new actor that fails, or is late, counts as a death, and another is tried. RuntimeError if no restart is left.
        """
        if dead.state in FINAL:
            return
        leaves = self.resizing.leaves(dead)
        self.players.move(dead, State.DEAD)
        dead.actor.kill()
        if not leaves:
            await self.begin_player(dead.name, self.allow_restart(dead.name, cause))

    async def begin_player(self, name: str, wait_s: float = 0.0) -> None:
        """Starts an environment actor after `wait_s` and waits until it is healthy; another is tried if it fails.
        RuntimeError if no restart is left."""
        self.creating[Kind.ENVIRONMENT].add(name)
        starting = self._replacing[name] = asyncio.create_task(self._bring_up(name, wait_s))
        starting.add_done_callback(lambda _: self._brought_up(name))
        await asyncio.shield(starting)  # the caller's ticket may be cancelled; the actor comes up all the same

    def _brought_up(self, name: str) -> None:
        self.creating[Kind.ENVIRONMENT].discard(name)
        self.players.changed.set()

    async def _bring_up(self, name: str, wait_s: float) -> None:
        """Starts environment actors of this name until one is healthy. RuntimeError if no restart is left."""
        while cause := await self._failed_start(name, wait_s):
            self._player_failure = cause
            wait_s = self.allow_restart(name, cause)
            self.creating[Kind.ENVIRONMENT].add(name)

    async def _failed_start(self, name: str, wait_s: float) -> str:
        """Starts one environment actor after `wait_s`; why it is to be tried again, or nothing if it need not be."""
        await asyncio.sleep(wait_s)
        try:
            actor = await self._created(Kind.ENVIRONMENT, self.actors.player, name)
        except ActorError as error:
            return reason_of(error) if self.resizing.lacks(Kind.ENVIRONMENT) else ""
        member = self.players.join(name, actor)
        self.resizing.converge(Kind.ENVIRONMENT)
        try:
            await within({member.name: self._prepare(member)}, self.config.cluster.start_timeout_s, "restart")
        except (RuntimeError, TimeoutError) as error:
            if member.state in FINAL:
                return ""  # it was told to leave meanwhile
            leaves = self.resizing.leaves(member)
            self.players.move(member, State.DEAD)
            member.actor.kill()
            return "" if leaves else str(error)
        return ""

    async def _prepare(self, player: Member[Player]) -> None:
        """Makes a new environment actor healthy once it knows every rollout worker, including late joiners."""
        await player.actor.ready()
        known: dict[str, Worker] | None = None
        while known != (present := {member.name: member.actor for member in self.workers.present()}):
            await player.actor.meet(present)
            known = present
        self.players.move(player, State.HEALTHY)

    async def suspect_worker(self, member: Member[Worker]) -> bool:
        """Requests a token from a worker under which a trajectory failed in generation; True if it is dead or was
        replaced since."""
        if member.state in FINAL:
            return True
        if member.state is State.HEALTHY:
            self.workers.move(member, State.SUSPECT)
        try:
            await bounded(member.actor.health(HEALTH_TIMEOUT_S), HEALTH_TIMEOUT_S + GRACE_S)
        except (ActorError, TimeoutError) as error:
            self.lose_worker(member, reason_of(error))
            return True
        finally:
            if member.state is State.SUSPECT:
                self.workers.move(member, State.HEALTHY)
        return False

    def lose_worker(self, member: Member[Worker], cause: str) -> None:
        """Removes a dead rollout worker and starts a successor, unless it was about to leave."""
        if member.state in FINAL:
            return
        leaves = self.resizing.leaves(member)
        self.workers.move(member, State.DEAD)
        member.actor.kill()
        if not leaves:
            self.begin_join(member.name, self.allow_restart(member.name, cause))

    def lose_late(self, failed: UpdateFailed, version: int) -> None:
        """As `lose_worker`, for the workers that did not load a version."""
        for member, error in failed.members:
            self.lose_worker(member, f"version {version} was not loaded: {reason_of(error)}")

    def begin_join(self, name: str, wait_s: float = 0.0) -> None:
        """Starts a rollout worker after `wait_s`, which becomes healthy once it has the current weights."""
        self.creating[Kind.ROLLOUT].add(name)
        self._joins[name] = asyncio.create_task(self._join(name, wait_s), name=name)
        self._joins[name].add_done_callback(self._join_ended)

    def _join_ended(self, task: asyncio.Task[None]) -> None:
        """Keeps an error that `_join` does not expect, a bug, so that `need_worker` raises it. While other workers are
        healthy the log alone tells of it."""
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error("%s: the error of a join that nobody expects", task.get_name(), exc_info=fault)
            self._join_fault = fault
        self.workers.changed.set()

    async def _join(self, name: str, wait_s: float) -> None:
        """Lets a new rollout worker join after the back-off. A worker that fails is ended, and another is tried if
        restarts are left."""
        started = time.time()
        await asyncio.sleep(wait_s)
        created = time.time()
        try:
            actor = await self._created(Kind.ROLLOUT, self.actors.worker, name)
        except ActorError as error:
            self._not_joined(name, reason_of(error))
            if self.resizing.lacks(Kind.ROLLOUT):
                self._try_again(name, reason_of(error))
            return
        member = self.workers.join(name, actor)
        self.resizing.converge(Kind.ROLLOUT)
        try:
            await within({name: actor.ready()}, self.config.rollout.start_timeout_s, "restart")
            start_s = time.time() - created
            await self._take_in(member)
        except (RuntimeError, TimeoutError) as error:
            self._join_failed(member, str(error))
        else:
            if member.state is State.HEALTHY:
                facts = {"held_s": self._held.pop(name, 0.0), "start_s": start_s}
                self.on_event(name, "joined", started, time.time(), **facts)

    async def _take_in(self, member: Member[Worker]) -> None:
        """Makes a worker whose engine is loaded healthy."""
        with self._left_alone(member):
            self.workers.move(member, State.STALE)
            async with self._introducing:  # environment actors must hear of the newest workers last
                await self._introduce(self.players.members(State.HEALTHY), self.workers.present())
            await self._load(member)
        while member.state is State.STALE:  # a newer version came meanwhile; the next update brings the one after it
            if self.workers.members(State.HEALTHY, State.SUSPECT):
                await self.workers.change()
            else:
                with self._left_alone(member):
                    await self._load(member)

    @contextmanager
    def _left_alone(self, member: Member[Worker]) -> Iterator[None]:
        self._joining.add(member)
        try:
            yield
        finally:
            self._joining.discard(member)

    async def _load(self, member: Member[Worker]) -> None:
        """Loads the current version beside the run. The worker is healthy if that is still the current one then. A
        version that is lost with its learner is loaded once the learner is back."""
        while True:
            await self.weights.wait()
            bundle = self.bundle
            try:
                if bundle is not None:
                    update = member.actor.update_weights(bundle)
                    await within({member.name: update}, self.config.rollout.update_timeout_s, "late join")
                break
            except (RuntimeError, TimeoutError):
                if self.weights.is_set() and bundle is self.bundle:
                    raise  # else the learner was made again meanwhile, and its weights have another owner
        if bundle is self.bundle and member.state is State.STALE:
            self.workers.move(member, State.HEALTHY)

    async def _created(self, kind: Kind, make: Callable[[str], T], name: str) -> T:
        """A member's process, created in a thread of its own: creations are many at a time, wait for each other, and
        must not keep the threads in which the learner is asked."""
        try:
            return await asyncio.get_running_loop().run_in_executor(OwnThread(), make, name)
        finally:
            self.creating[kind].discard(name)

    def _not_joined(self, name: str, cause: str) -> None:
        now = time.time()
        self.on_event(name, "join_failed", now, now, cause=cause)
        log.error("%s: a replacement did not join: %s", name, cause)
        self._join_failure = cause

    def _join_failed(self, member: Member[Worker], cause: str) -> None:
        if member.state is State.RETIRED:
            return  # it was told to leave meanwhile
        self._not_joined(member.name, cause)
        if member.state is State.DEAD:
            return  # it died while environment actors were told of it, and its successor has the name
        leaves = self.resizing.leaves(member)
        self.workers.move(member, State.DEAD)
        member.actor.kill()
        if not leaves:
            self._try_again(member.name, cause)

    def _try_again(self, name: str, cause: str) -> None:
        """Starts another rollout worker of this name if restarts are left, or else goes on with fewer."""
        if self._budget.left(name, _now()):
            self.begin_join(name, self.allow_restart(name, cause))
        else:
            self.resizing.gave_up(Kind.ROLLOUT, cause)

    async def need_worker(self) -> Mapping[str, Worker]:
        """The healthy rollout workers by name, as soon as there is one; RuntimeError if none is healthy or joining."""
        while not (healthy := self.workers.healthy()):
            if self._join_fault is not None:
                raise self._join_fault
            if not self.workers.present() and not self.creating[Kind.ROLLOUT]:
                raise RuntimeError(f"no rollout worker is left, and none is starting{_last(self._join_failure)}")
            await self.workers.change()
        return healthy

    async def need_player(self) -> Mapping[str, Player]:
        """The healthy environment actors by name, as soon as there is one; RuntimeError if none is healthy or
        starting."""
        while not (healthy := self.players.healthy()):
            if not self.players.present() and not self.creating[Kind.ENVIRONMENT]:
                raise RuntimeError(f"no environment actor is left, and none is starting{_last(self._player_failure)}")
            await self.players.change()
        return healthy

    # -- services --------------------------------------------------------------------------------------------------

    def condemn(self, name: str, actor: Actor, cause: str) -> None:
        """Ends a filter service or scorer that is lost or hung. Its replacement is told this cause; a filter service is
        replaced by whoever calls it next."""
        self.condemned[actor] = cause
        self.on_event(name, "lost", time.time(), time.time(), cause=cause)
        log.warning("%s is ended: %s", name, cause)
        actor.kill()

    async def replace_filter(self, cause: str) -> None:
        """Replaces the filter service by a new one, which holds no groups yet."""
        await asyncio.sleep(self.allow_restart("filter", self._cause(self.filter, cause)))
        self.filter = self.actors.filter()

    async def replace_scorer(self, cause: str) -> None:
        """Replaces the scorer; nothing waits for the new scorer. If no restart is left, the run continues without
        scoring and logs that."""
        lost, self.scorer = self.scorer, None
        cause = self._cause(lost, cause)
        if not self._budget.left("scorer", _now()):
            log.error("the scorer died %d times and is not restarted: %s", self.restarts["scorer"] + 1, cause)
            return
        await asyncio.sleep(self.allow_restart("scorer", cause))
        self.scorer = self.actors.scorer()

    def _cause(self, actor: Actor | None, cause: str) -> str:
        """The cause for which a service was ended, or else `cause`."""
        return self.condemned.pop(actor, cause) if actor is not None else cause

    def replace_learner(self, ranks: int) -> None:
        """Replaces the ended learner by a new one, which has not been started yet."""
        self.learner = self.actors.learner(ranks)

    # -- figures -----------------------------------------------------------------------------------------------------

    def members(self) -> list[Member[Any]]:
        """The newest member of each name: rollout workers, then environment actors."""
        return [*self.workers.members(), *self.players.members()]

    def take_restarts(self) -> dict[str, int]:
        """Number of restarts by party since the last call; 0 once for each party that came later, from which its
        counter rises."""
        news, new = self.restarts - self._told, self.up().keys() - self._counted
        self._told, self._counted = Counter(self.restarts), self._counted | new
        return {**dict.fromkeys(sorted(new), 0), **news}

    def up(self) -> dict[str, bool]:
        """Whether each party is up, by name; a party that died and was not replaced is down. A member that left in good
        order is no party any more."""
        members = [member for member in self.members() if member.state is not State.RETIRED]
        services: dict[str, Actor | None] = {"filter": self.filter, "learner": self.learner}
        if self.config.scorer.enabled:
            services["scorer"] = self.scorer
        up = {name: actor is not None and actor not in self.condemned for name, actor in services.items()}
        return {member.name: member.state in UP for member in members} | up


def _last(failure: str) -> str:
    return f"; the last to start failed: {failure}" if failure else ""


def _now() -> float:
    return asyncio.get_running_loop().time()


UP = frozenset({State.HEALTHY, State.SUSPECT, State.DRAINING})
"""States in which a member counts as up."""


def actor_names(config: RunConfig) -> tuple[list[str], list[str]]:
    """Names of the rollout workers, and of all parties, with which a run starts; they seed the metrics' series."""
    workers, players = start_names(config, Kind.ROLLOUT), start_names(config, Kind.ENVIRONMENT)
    return workers, [*workers, *players, "filter", "learner", *(["scorer"] if config.scorer.enabled else [])]
