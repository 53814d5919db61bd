"""The fleet: starts the actors of a run, replaces dead ones where that is possible, and stops all of them.

    method             waits for                           unblocked by            on time-out
    `start`            every actor to be ready             each actor              the run ends; the late are named.
                                                                                   Environment actors are replaced
                                                                                   while others of them are ready
    `update_workers`   every worker that is ready          its parity probe        the late are named and replaced
    `suspect_worker`   one token of the worker             the worker              it counts as dead
    `replace_filter`   the back-off                        the clock               -

The fleet replaces environment actors, rollout workers, the filter service and the scorer after their death, and the
learner with all of its ranks, each as often as the budget allows, with its back-off (`cluster.control.restart_budget`).
A pool each (`cluster.fleet.pool`) starts, replaces and removes rollout workers and environment actors, beside the run;
`cluster.fleet.joining` makes a new one healthy. `cluster.fleet.supervision` notices the deaths and ends hung actors.
Only healthy members get work (`cluster.control.membership`). `cluster.loop.learner_client.recovery` rebuilds the
weights of a new learner. This module does not import Ray: `Actors` creates the actors.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from squelch.actors.messages import UpdateReport, WeightBundle
from squelch.actors.process.stage import OnStage, ignore_stage
from squelch.cluster.config import RunConfig
from squelch.cluster.control.actor_errors import ActorError, Died, Failed, reason_of
from squelch.cluster.control.calls import FILTER_READY, HEALTH, READY, STOP_ENGINE, Bound
from squelch.cluster.control.client import Client, loop_time
from squelch.cluster.control.membership import FINAL, PLAYER_MOVES, WORKER_MOVES, Member, Membership
from squelch.cluster.control.membership import MemberState as State
from squelch.cluster.control.protocols import Actors
from squelch.cluster.control.rank_client import LEARNER, LearnerClient
from squelch.cluster.control.resizing import Resizing
from squelch.cluster.control.restart_budget import RestartBudget
from squelch.cluster.control.scaling import Kind, start_counts, start_names
from squelch.cluster.fleet.delivery import Delivery
from squelch.cluster.fleet.joining import Joining, Published
from squelch.cluster.fleet.pool import Pool
from squelch.cluster.fleet.restart_counts import Restarts
from squelch.cluster.fleet.waiting import announced, bounded, each_within

log = logging.getLogger(__name__)
ENDPOINT = "control-endpoint"
ENDPOINT_RETRY_S = 10.0
HEALTH_TIMEOUT_S = 20.0
"""Seconds a suspect rollout worker may take to generate a token."""


class UpdateFailed(RuntimeError):
    """Rollout workers did not get a version. `members`: each with its error."""

    def __init__(self, members: list[tuple[Member[Client], BaseException]]) -> None:
        failed = [f"update_weights: {member.name} failed: {reason_of(error)}" for member, error in members]
        super().__init__("; ".join(failed))
        self.members = members


class Fleet:
    """Every actor of a run, by name."""

    def __init__(self, config: RunConfig, actors: Actors, on_event: Callable[..., None]) -> None:
        self.config, self.actors, self.on_event = config, actors, on_event
        self.filter: Client | None = None
        self.scorer: Client | None = None
        self.learner: LearnerClient | None = None
        self.endpoint: Client | None = None
        """The control endpoint, while requests are taken."""
        self.dead: dict[Client, str] = {}
        """Services that have been ended because they were lost or hung, with the cause; their next call fails."""
        self.published = Published()
        cluster, names = config.cluster, actor_names(config)[1]
        budget = RestartBudget(cluster.max_restarts, cluster.restart_window_s, cluster.restart_backoff_s)
        self.restarts = Restarts(budget, names, on_event)
        self.workers: Membership[Client] = Membership("rollout worker", WORKER_MOVES)
        self.players: Membership[Client] = Membership("environment actor", PLAYER_MOVES)
        self.joining = Joining(config, self.workers, self.players, self.published)
        counts, call_s = start_counts(config), config.loop.group_timeout_s
        self.worker_pool = Pool(
            self.workers,
            Resizing(Kind.ROLLOUT, counts[Kind.ROLLOUT]),
            self.restarts,
            on_event,
            create=actors.worker,
            admit=self.joining.worker,
            stop=lambda worker: worker.call(STOP_ENGINE),
            ready_s=config.rollout.start_timeout_s,
            call_s=call_s,
        )
        self.player_pool = Pool(
            self.players,
            Resizing(Kind.ENVIRONMENT, counts[Kind.ENVIRONMENT]),
            self.restarts,
            on_event,
            create=actors.player,
            admit=self.joining.player,
            ready_s=cluster.start_timeout_s,
            call_s=call_s,
        )
        self.pools: Mapping[Kind, Pool[Any]] = {Kind.ROLLOUT: self.worker_pool, Kind.ENVIRONMENT: self.player_pool}
        self._delivery = Delivery(config.rollout, config.way, on_event)

    # -- start and stop --------------------------------------------------------------------------------------------

    async def start(self, learning: bool = True, on_stage: OnStage = ignore_stage, resumes: bool = False) -> None:
        """Creates all actors and waits until each is ready; a TimeoutError names the late ones. Environment actors that
        hang are replaced beside the run if others are up.

        With `learning` false only rollout workers and environment actors are started; the workers keep their initial
        weights and count as healthy. `resumes`: as of `LearnerClient.start`.
        """
        for name in start_names(self.config, Kind.ROLLOUT):
            self.workers.join(name, self.actors.worker(name))
        for name in start_names(self.config, Kind.ENVIRONMENT):
            self.players.join(name, self.actors.player(name))
        bound = self._start_bound()
        ready: dict[str, Awaitable[Any]] = {one.name: one.actor.call(READY) for one in self.workers.present()}
        ready |= {one.name: _is_up(one, bound) for one in self.players.present()}
        if learning:
            ready |= self._start_learning(resumes)
        try:
            found = await each_within(announced(ready, self._parts(), on_stage), self._bounds(ready, bound), "start")
            self._replace_hung([one for one in self.players.present() if not found[one.name]], "start", bound)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; {self.actors.free_resources()}") from error
        for worker in self.workers.present():
            self.workers.move(worker, State.STALE)
            if not learning:
                self.workers.move(worker, State.HEALTHY)
        bound = Bound(self.config.cluster.hung_after_s, "cluster.hung_after_s")
        up = self.players.present()
        late = await self.joining.introduce(up, self.workers.present(), bound.seconds)
        for player in up:
            if player not in late:
                self.players.move(player, State.HEALTHY)
        self._replace_hung(late, "set_workers", bound)

    async def start_learner(self, resumes: bool) -> None:
        """As `start`, the learner alone."""
        self.learner = self.actors.learner(self.config.learner.ranks)
        ready = {LEARNER: self.learner.start(resumes)}
        await each_within(ready, self._bounds(ready, self._start_bound()), "start")

    def _start_bound(self) -> Bound:
        return Bound(self.config.cluster.start_timeout_s, "cluster.start_timeout_s")

    def _bounds(self, names: Iterable[str], bound: Bound) -> dict[str, Bound]:
        """The bound of each call of the start: `bound`, or that of the part if it is longer. Those of the environment
        actors, and of a learner with a longer one, bound themselves."""
        config = self.config
        engine = Bound(config.rollout.start_timeout_s, "rollout.start_timeout_s")
        longer = {one.name: max(bound, engine, key=lambda one: one.seconds) for one in self.workers.present()}
        own = {one.name for one in self.players.present()}
        if config.learner.start_timeout_s > bound.seconds:
            own.add(LEARNER)
        return {name: longer.get(name, bound) for name in names if name not in own}

    def _replace_hung(self, late: Sequence[Member[Client]], what: str, bound: Bound) -> None:
        """Replaces environment actors that did not answer. TimeoutError with their names if none did: successors would
        hang too."""
        if late and len(late) == len(self.players.present()):
            names = ", ".join(member.name for member in late)
            raise TimeoutError(f"{what}: {names} did not answer within {bound}")
        for member in late:
            self.player_pool.on_death(member, f"{what}: no answer within {bound}")

    def _start_learning(self, resumes: bool) -> dict[str, Awaitable[Any]]:
        self.filter = self.actors.filter()
        self.scorer = self.actors.scorer() if self.config.scorer.enabled else None
        self.learner = self.actors.learner(self.config.learner.ranks)
        ready: dict[str, Awaitable[Any]] = {
            "filter": self.filter.call(FILTER_READY, []),
            "learner": self.learner.start(resumes),
        }
        if self.scorer is not None:
            ready["scorer"] = self.scorer.progress()
        return ready

    def _parts(self) -> dict[str, str]:
        """What an actor does while it starts, by its name, where that takes long."""
        ranks = self.config.learner.ranks
        engines = {member.name: f"{member.name} (engine)" for member in self.workers.present()}
        return engines | {"learner": "learner" if ranks == 1 else f"learner ({ranks} ranks)"}

    async def stop(self, timeout_s: float = 30.0) -> None:
        """Asks every actor to stop and kills the actors that do not stop within `timeout_s`; no process is left."""
        await asyncio.gather(*(pool.stop_changes() for pool in self.pools.values()))
        calls: dict[str, Awaitable[Any]] = {
            member.name: member.actor.call(STOP_ENGINE) for member in self.workers.present()
        }
        if self.learner is not None:
            calls["learner"] = self.learner.stop()
        done = await asyncio.gather(*(bounded(call, timeout_s) for call in calls.values()), return_exceptions=True)
        for name, result in zip(calls, done, strict=True):
            if isinstance(result, BaseException):
                log.warning("%s did not stop when asked and is killed: %r", name, result)
        for pool in self.pools.values():
            pool.kill()
        for service in (self.filter, self.scorer, self.learner):
            if service is not None:
                service.kill()

    # -- rollout workers -------------------------------------------------------------------------------------------

    async def update_workers(self, bundle: WeightBundle) -> list[UpdateReport]:
        """Loads a version into every rollout worker that is ready. A dead worker is replaced; the new worker joins
        later.

        Raises:
            UpdateFailed: workers are late, or refused the weights, or failed the checks on them; all others have them.
            SenderLost: the learner failed in a broadcast.
        """
        self.published.bundle = bundle
        self.published.there.set()
        ready = self.workers.members(State.STALE, State.HEALTHY, State.SUSPECT)
        members = [member for member in ready if member not in self.joining.apart]
        new = {member.name for member in members if member.state is State.STALE}
        found, ended = await self._delivery.deliver(bundle, members, self.learner)
        last = max((ended[name] for name in ended.keys() - new), default=loop_time())
        self.joining.held |= {name: max(0.0, ended[name] - last) for name in new & ended.keys()}
        reports = [self._updated(member, found[member.name]) for member in members]
        late = [member for member in members if isinstance(found[member.name], (Failed, TimeoutError))]
        if failed := [(member, found[member.name]) for member in late if not _left(member)]:
            raise UpdateFailed(failed)
        await self.worker_pool.need()
        return [report for report in reports if report is not None]

    def _updated(self, member: Member[Client], outcome: Any) -> UpdateReport | None:
        if _left(member):
            return None
        if isinstance(outcome, Died):
            self.worker_pool.on_death(member, str(outcome))
        elif not isinstance(outcome, BaseException):
            if member.state is State.STALE:
                self.workers.move(member, State.HEALTHY)
            return outcome
        elif not isinstance(outcome, (Failed, TimeoutError)):
            raise outcome
        return None

    def replace_late(self, failed: UpdateFailed, version: int) -> None:
        """Replaces the workers that did not load a version. RuntimeError if no restart is left."""
        for member, error in failed.members:
            self.worker_pool.on_death(member, f"version {version} was not loaded: {reason_of(error)}")

    async def suspect_worker(self, member: Member[Client]) -> bool:
        """Requests a token from a worker under which a trajectory failed in generation; True if it is dead or was
        replaced since."""
        if member.state in FINAL:
            return True
        if member.state is State.HEALTHY:
            self.workers.move(member, State.SUSPECT)
        try:
            await member.actor.call(HEALTH, HEALTH_TIMEOUT_S)
        except (ActorError, TimeoutError) as error:
            self.worker_pool.on_death(member, reason_of(error))
            return True
        finally:
            if member.state is State.SUSPECT:
                self.workers.move(member, State.HEALTHY)
        return False

    # -- services --------------------------------------------------------------------------------------------------

    def mark_dead(self, name: str, actor: Client, cause: str) -> None:
        """Ends a filter service or scorer that is lost or hung. The event of its replacement has this cause; the next
        call to a filter service replaces it."""
        self.dead[actor] = cause
        self.on_event(name, "lost", time.time(), time.time(), cause=cause)
        log.warning("%s is ended: %s", name, cause)
        actor.kill()

    async def replace_filter(self, cause: str) -> None:
        """Replaces the filter service by a new one, which holds no groups yet."""
        await asyncio.sleep(self.restarts.allow("filter", self._cause(self.filter, cause)))
        self.filter = self.actors.filter()

    async def replace_scorer(self, cause: str) -> None:
        """Replaces the scorer; nothing waits for the new scorer. If no restart is left, the run continues without a
        scorer and logs that."""
        lost, self.scorer = self.scorer, None
        cause = self._cause(lost, cause)
        if not self.restarts.left("scorer"):
            log.error("the scorer died %d times and is not restarted: %s", self.restarts.counts["scorer"] + 1, cause)
            return
        await asyncio.sleep(self.restarts.allow("scorer", cause))
        self.scorer = self.actors.scorer()

    async def replace_endpoint(self, cause: str) -> Client:
        """Replaces the control endpoint. Without a restart left nobody can scale the run, which goes on, until the
        budget has one again."""
        lost, self.endpoint = self.endpoint, None
        cause = self._cause(lost, cause)
        if lost is not None:
            lost.kill()
        if not self.restarts.left(ENDPOINT):
            log.error("the control endpoint is not restarted for now, so `squelch scale` has no answer: %s", cause)
        while not self.restarts.left(ENDPOINT):
            await asyncio.sleep(ENDPOINT_RETRY_S)
        await asyncio.sleep(self.restarts.allow(ENDPOINT, cause))
        self.endpoint = self.actors.control_endpoint()
        return self.endpoint

    def _cause(self, actor: Client | None, cause: str) -> str:
        """The cause for which a service was ended, or else `cause`."""
        return self.dead.pop(actor, cause) if actor is not None else cause

    def replace_learner(self, ranks: int) -> None:
        """Replaces the ended learner by a new one, which has not been started yet."""
        self.learner = self.actors.learner(ranks)

    # -- metrics -----------------------------------------------------------------------------------------------------

    def wanted(self) -> dict[Kind, int]:
        """The wanted number of members of each kind."""
        return {kind: pool.wanted for kind, pool in self.pools.items()}

    def complete(self) -> bool:
        """Whether every wanted member is up."""
        return all(pool.complete() for pool in self.pools.values())

    def members(self) -> list[Member[Any]]:
        """The newest member of each name: rollout workers, then environment actors."""
        return [*self.workers.members(), *self.players.members()]

    def notice(self, seconds_left: Mapping[str, float]) -> None:
        """Takes the names of members whose nodes will be taken away, each with the seconds until then."""
        for pool in self.pools.values():
            pool.notice(seconds_left)

    def take_scalings(self) -> dict[str, float]:
        """Flat metrics: the wanted numbers, and their changes since the last call. Raises the error of a change
        that failed because of a bug."""
        return {name: value for pool in self.pools.values() for name, value in pool.take_metrics().items()}

    def take_restarts(self) -> dict[str, int]:
        """Restarts by actor since the last call; 0 once for each actor that came later."""
        return self.restarts.take(self.up())

    def up(self) -> dict[str, bool]:
        """Whether each actor is up, by name; one that died and was not replaced is down. A member that left in good
        order is no actor any more."""
        members = [member for member in self.members() if member.state is not State.RETIRED]
        services: dict[str, Client | LearnerClient | None] = {"filter": self.filter, "learner": self.learner}
        if self.config.scorer.enabled:
            services["scorer"] = self.scorer
        up = {name: actor is not None and actor not in self.dead for name, actor in services.items()}
        return {member.name: member.state in UP for member in members} | up


async def _is_up(player: Member[Client], bound: Bound) -> bool:
    """Whether an environment actor is ready in time."""
    try:
        await bounded(player.actor.call(READY), bound.seconds)
    except TimeoutError:
        return False
    return True


def _left(member: Member[Client]) -> bool:
    """Whether a worker left or is draining: it may have been asked to while it loaded weights."""
    return member.state in FINAL or member.state is State.DRAINING


UP = frozenset({State.HEALTHY, State.SUSPECT, State.DRAINING})
"""States in which a member counts as up."""


def actor_names(config: RunConfig) -> tuple[list[str], list[str]]:
    """Names of the rollout workers, and of all actors, with which a run starts; they seed the metrics' series."""
    workers, players = start_names(config, Kind.ROLLOUT), start_names(config, Kind.ENVIRONMENT)
    return workers, [*workers, *players, "filter", "learner", *(["scorer"] if config.scorer.enabled else [])]
