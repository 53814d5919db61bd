"""Supervision: notices every actor that dies or hangs while it is up, and ends it, so that it can be replaced.

One task for each actor waits for its death and asks for its progress every `poll_s`, or less often in a large fleet:

    event                                 action
    the process is gone                   a player, worker or scorer is replaced at once; a filter service and a control
                                          endpoint at their next call, which fails with this cause
    no sign of progress for its limit     the actor is ended, and then as above (`cluster.control.progress`)
    no sign for a fifth of it             the watchdog names the actor in a warning and an event; a gauge shows it
    it cannot work any more (`Failed`)    as a death; a rollout worker says so when its engine has died

The tickets of a dead environment actor are retried by `cluster.loop.tickets.playing`, and `cluster.fleet.pool` replaces
it. Nothing waits for the supervisor. The learner is not among its actors: its calls are watched by its client
(`cluster.control.rank_client`), because only a call says which signs to expect; the watchdog is the same.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from squelch.cluster.control.actor_errors import ActorError, reason_of
from squelch.cluster.control.client import Client, loop_time
from squelch.cluster.control.membership import Member
from squelch.cluster.control.membership import MemberState as State
from squelch.cluster.control.progress import Patience, ProgressWatch, poll_s
from squelch.cluster.fleet.fleet import ENDPOINT, Fleet
from squelch.cluster.fleet.pool import Pool
from squelch.kit.process.progress_marks import Progress

log = logging.getLogger(__name__)
T = TypeVar("T")
QUESTIONS_PER_S = 100.0
"""Most questions to all actors together; a fleet of a thousand is asked every 10 s."""
SUPERVISED = (State.STALE, State.HEALTHY, State.SUSPECT, State.DRAINING)
"""States in which a member is ready, so that it must answer."""
SETTING = "cluster.hung_after_s"
STEP_GRACE_S = 10.0
"""Seconds beyond `environment_actor.step_timeout_s` after which an environment actor without an end of a call may count
as hung: within them it reports the call as late itself, which costs one trajectory."""
AWAY_S = 20.0
"""Seconds by which a look may come late. If it comes later, this process was stopped itself, as by Ctrl-Z, and heard no
answer."""
LEAST_SILENCE_S = 0.1
"""Shorter silences are shown as 0: they are the time that an answer takes."""
SILENCE = "squelch_without_progress_seconds"
Show = Callable[..., None]
"""Sets a gauge: name, value, labels."""


class Watchdog:
    """Names the actors that hold up the run. `show` sets a gauge of the exporter."""

    def __init__(self, on_event: Callable[..., None], show: Show) -> None:
        self.on_event, self.show = on_event, show
        self.marks: dict[str, int] = {}
        """The marks of each actor that was seen, since the start of its process."""
        self._named: set[str] = set()
        self._shown: dict[str, float] = {}
        """The value of each actor's gauge. In a large fleet nearly every look finds 0 again, which sets nothing."""

    def see(self, name: str, watch: ProgressWatch, now: float) -> None:
        """Takes the present silence of the actor `name`; warns once when it has lasted `ProgressWatch.late_s`."""
        self.marks[name] = watch.marks
        silence = watch.silence_s(now)
        self._show(name, silence if silence >= LEAST_SILENCE_S else 0.0)
        if silence < watch.late_s:
            self._named.discard(name)
        elif name not in self._named:
            self._named.add(name)
            text = f"{watch.words(now)}; it counts as hung after {watch.limit_s:.0f} s"
            log.warning("waiting: %s", text)
            self.on_event(name, "late", time.time(), time.time(), cause=text)

    def forget(self, name: str) -> None:
        """Forgets an actor that has ended, or whose call has."""
        self._named.discard(name)
        self._show(name, 0.0)
        del self._shown[name]

    def _show(self, name: str, silence: float) -> None:
        if self._shown.get(name) != silence:
            self._shown[name] = silence
            self.show(SILENCE, silence, actor=name)


class Supervisor:
    """Supervises the environment actors, rollout workers, filter service, scorer and control endpoint of a fleet.
    `replace_scorer`: replaces a scorer that was ended with this cause; None without a scorer."""

    def __init__(
        self, fleet: Fleet, watchdog: Watchdog, replace_scorer: Callable[[Client, str], Awaitable[None]] | None = None
    ) -> None:
        cluster = fleet.config.cluster
        self.fleet, self.watchdog, self.replace_scorer = fleet, watchdog, replace_scorer
        self.hung_after_s, self.start_s = cluster.hung_after_s, cluster.start_timeout_s
        self.poll_s = poll_s(cluster.hung_after_s)
        self._tasks: dict[Client, asyncio.Task[None]] = {}

    async def beside(self, work: Awaitable[T]) -> T:
        """Awaits `work` and supervises meanwhile. Raises what supervision raises, such as a budget of restarts that is
        used up, and cancels the work then."""
        task, own = asyncio.ensure_future(work), asyncio.ensure_future(self._run())
        try:
            await asyncio.wait({task, own}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                own.result()
            return task.result()
        finally:
            doomed = [task, own, *self._tasks.values()]
            for one in doomed:
                one.cancel()
            await asyncio.gather(*doomed, return_exceptions=True)

    async def _run(self) -> None:
        """Keeps a task for each actor that is up; raises the first error of one."""
        while True:
            for actor, begin in self._present().items():
                if actor not in self._tasks:
                    self._tasks[actor] = asyncio.ensure_future(begin())
            pause = asyncio.ensure_future(asyncio.sleep(self.poll_s))
            await asyncio.wait({pause, *self._tasks.values()}, return_when=asyncio.FIRST_COMPLETED)
            pause.cancel()
            for actor in [actor for actor, task in self._tasks.items() if task.done()]:
                self._tasks.pop(actor).result()

    def _present(self) -> dict[Client, Callable[[], Awaitable[None]]]:
        """The actors that are up, each with the coroutine that supervises it."""
        fleet, found = self.fleet, dict[Client, Callable[[], Awaitable[None]]]()
        steps = fleet.config.environment_actor.step_timeout_s + STEP_GRACE_S
        for member in filter(_supervised, fleet.players.members()):
            found[member.actor] = lambda m=member: self._member(fleet.player_pool, m, "environment call", steps)
        for member in filter(_supervised, fleet.workers.members()):
            found[member.actor] = lambda m=member: self._member(fleet.worker_pool, m, "step of its engine")
        for name, actor in (("filter", fleet.filter), ("scorer", fleet.scorer), (ENDPOINT, fleet.endpoint)):
            if actor is not None and actor not in fleet.dead:
                found[actor] = lambda n=name, p=actor: self._service(n, p)
        return found

    async def _member(self, pool: Pool[Any], member: Member[Any], mark: str, least_s: float = 0.0) -> None:
        """Replaces the member once it is lost. `least_s`: what a single mark of it may take by other settings."""
        patience = Patience(max(self.hung_after_s, least_s), mark, SETTING)
        cause = await self._cause(member.name, member.actor, patience, lambda: _supervised(member))
        if cause is not None and _supervised(member):
            pool.on_death(member, cause)

    async def _service(self, name: str, actor: Client) -> None:
        def current() -> bool:
            return actor in (self.fleet.filter, self.fleet.scorer, self.fleet.endpoint)

        patience = Patience(self.hung_after_s, "batch of scored tokens", SETTING, self.start_s)
        cause = await self._cause(name, actor, patience, current)
        if cause is None or not current():
            return
        scorer = self.fleet.scorer
        self.fleet.mark_dead(name, actor, cause)
        if scorer is not None and actor is scorer and self.replace_scorer is not None:
            await self.replace_scorer(scorer, cause)

    async def _cause(self, name: str, actor: Client, patience: Patience, current: Callable[[], bool]) -> str | None:
        """Waits until the actor is lost; returns the cause, or None once it is no longer `current`."""
        watch = ProgressWatch([name], patience, loop_time())
        death, question = asyncio.ensure_future(actor.lost()), asyncio.ensure_future(actor.progress())
        try:
            while current():
                pause, began = max(self.poll_s, len(self._tasks) / QUESTIONS_PER_S), loop_time()
                await asyncio.wait({death}, timeout=pause)
                if loop_time() - began > pause + AWAY_S:
                    watch = ProgressWatch([name], patience, loop_time())
                if death.done() and (error := death.exception()):
                    return str(error)
                if cause := _seen(question, watch):
                    return cause
                if question.done():
                    question = asyncio.ensure_future(actor.progress())
                self.watchdog.see(name, watch, loop_time())
                if cause := watch.hung(loop_time()):
                    return cause
            return None
        finally:
            death.cancel()
            question.cancel()
            self.watchdog.forget(name)


def _supervised(member: Member[Any]) -> bool:
    return member.state in SUPERVISED and not member.stopping


def _seen(question: asyncio.Future[Progress], watch: ProgressWatch) -> str | None:
    """Takes the answer to a question, if it has come: on a machine under load that may take longer than the time
    between two questions. Returns the cause if the actor cannot work any more."""
    if not question.done():
        watch.see([None], loop_time())
        return None
    if isinstance(error := question.exception(), ActorError):
        return reason_of(error)
    watch.see([question.result()], loop_time())
    return None
