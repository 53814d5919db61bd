"""A pool: the members of one kind, rollout workers or environment actors. They start, are replaced when they die, and
leave, while the run continues.

    a member          what happens                                        waits for, at most
    starts            its process is created in a thread; it becomes      `ready_s` to be ready; then the bounds of
                      ready, and is then made healthy                     `cluster.fleet.joining`
    dies              a successor starts under its name, unless it was    the back-off; without a restart left, the run
                      about to leave                                      ends
    does not start    it is ended, and another is tried while one is      the back-off; without a restart left, fewer
                      missing                                             members are wanted from then on
    drains            it gets no more work, and leaves once the calls     `loop.group_timeout_s`, or its node's end;
                      that it serves have ended                           then it is cut off
    is cut off        its calls end with `CutOff`, so that their          nothing
                      tickets are retried, uncounted

Each of these is a task beside the run: neither the coordinator nor the learner waits for one. A caller that needs a
member waits in `need`; every change of the pool wakes it, and it fails once no member is left and none is starting.
`cluster.control.resizing` decides which members start and leave. Events of each change are in `events.jsonl`; `held_s`
says for how many seconds the coordinator did nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Generic, TypeVar

from squelch.cluster.control.actor_errors import ActorError, reason_of
from squelch.cluster.control.calls import READY
from squelch.cluster.control.client import Client, loop_time
from squelch.cluster.control.membership import FINAL, Member, Membership
from squelch.cluster.control.membership import MemberState as State
from squelch.cluster.control.resizing import Actions, Resizing
from squelch.cluster.control.scaling import WORDS, By, Request
from squelch.cluster.daemon_thread import OwnThread
from squelch.cluster.fleet.restart_counts import Restarts
from squelch.cluster.fleet.waiting import bounded, within

log = logging.getLogger(__name__)


P = TypeVar("P", bound=Client)


class Pool(Generic[P]):
    """The members of one kind."""

    def __init__(
        self,
        members: Membership[P],
        resizing: Resizing[P],
        restarts: Restarts,
        on_event: Callable[..., None],
        *,
        create: Callable[[str], P],
        admit: Callable[[Member[P]], Awaitable[float]],
        stop: Callable[[P], Awaitable[object]] | None = None,
        ready_s: float,
        call_s: float,
    ) -> None:
        """A pool without members yet.

        Args:
            create: creates the process of a member of this name. It runs in a thread and may raise `ActorError`.
            admit: makes a member that is ready healthy, or waits until it has ended; returns the seconds for which the
                run waited for it. RuntimeError or TimeoutError: it cannot become healthy.
            stop: asks a drained member to end by itself; None: it is killed.
            ready_s: most seconds until a member that was created is ready.
            call_s: most seconds that a call may take, for which a draining member is waited for.
        """
        self.members, self._resizing, self._restarts, self._on_event = members, resizing, restarts, on_event
        self._create, self._admit, self._stop = create, admit, stop
        self._ready_s, self._call_s = ready_s, call_s
        self.creating: set[str] = set()
        """Names of the members whose processes are being created, or wait for that."""
        self._changes: Counter[str] = Counter()
        self._failure: str | None = None
        """Why the last member that failed to start did."""
        self._fault: BaseException | None = None
        """An error that no change of the members explains: a bug."""
        self._tasks: set[asyncio.Task[None]] = set()

    # -- present and wanted members -----------------------------------------------------------------------------------

    @property
    def wanted(self) -> int:
        """The number of members that are wanted."""
        return self._resizing.wanted

    def complete(self) -> bool:
        """Whether every wanted member is up."""
        return len(self.members.healthy()) == self.wanted

    def _expected(self) -> int:
        """Number of the members that stay, and of those on their way in."""
        return len(self._resizing.expected(self.members.present(), self.creating))

    async def need(self) -> Mapping[str, P]:
        """The healthy members by name, as soon as there is one; RuntimeError if none is healthy or starting."""
        while not (healthy := self.members.healthy()):
            self._raise_fault()
            if not self.members.present() and not self.creating:
                last = f"; the last to start failed: {self._failure}" if self._failure is not None else ""
                raise RuntimeError(f"no {self.members.kind} is left, and none is starting{last}")
            await self.members.change()
        return healthy

    def _raise_fault(self) -> None:
        if self._fault is not None:
            raise self._fault

    def take_metrics(self) -> dict[str, float]:
        """Flat metrics: the wanted number, and its changes since the last call. Raises the error of a change that
        failed because of a bug."""
        self._raise_fault()
        flat = {f"wanted/{self._resizing.kind}": float(self.wanted)}
        flat |= {f"scalings/{change}": float(count) for change, count in self._changes.items()}
        self._changes.clear()
        return flat

    # -- changes of the wanted number ----------------------------------------------------------------------------------

    def scale(self, request: Request) -> None:
        """Sets the wanted number, which the caller has checked, and begins to change the pool."""
        kind, before, after = request.kind, self.wanted, request.count
        self._resizing.wanted = after
        facts = {"kind": kind.value, "before": before, "after": after, "by": request.by.value}
        self._record("fleet", "scale", time.time(), **facts, at_once=request.at_once, reason=request.reason)
        if after != before:
            self._changes[f"{kind}/{'up' if after > before else 'down'}/{request.by}"] += 1
        self.converge(request.at_once)

    def converge(self, at_once: bool = False) -> None:
        """Begins the arrivals and departures that are missing to the wanted number."""
        self._take(self._resizing.converge(self.members.present(), self.creating, at_once))

    def notice(self, seconds_left: Mapping[str, float]) -> None:
        """Takes the names of the members whose nodes will be taken away, each with the seconds until then."""
        news = self._resizing.notice(self.members.present(), seconds_left, loop_time())
        for member in news:
            left = seconds_left[member.name]
            self._changes[f"{self._resizing.kind}/down/{By.PREEMPTION}"] += 1
            self._record(member.name, "preempted", time.time(), seconds_left=left if left < math.inf else None)
        if news:
            self.converge()
        self._take(self._resizing.release(self.members.present(), loop_time()))

    def _give_up(self, cause: str) -> None:
        """Lowers the wanted number to the present members, because no further one could be started."""
        count, kind = self._expected(), self._resizing.kind
        if 0 < count < self.wanted:
            log.warning("%s: %d instead of %d: %s", WORDS[kind], count, self.wanted, cause)
            self.scale(Request(kind, count, by=By.FAILURE, reason=f"no further one started: {cause}"))

    def _take(self, actions: Actions[P]) -> None:
        for member in actions.cut:
            self._cut_off(member)
        for member, within_s in actions.drain.items():
            self.members.move(member, State.DRAINING)
            self._begin(self._drain(member, within_s))
        for name in actions.start:
            self.start(name)

    # -- members that come ---------------------------------------------------------------------------------------------

    def start(self, name: str, wait_s: float = 0.0) -> None:
        """Starts a member of this name after `wait_s`."""
        self.creating.add(name)
        self._begin(self._bring_up(name, wait_s))

    async def _bring_up(self, name: str, wait_s: float) -> None:
        """Starts members of this name until one has come up, no more is wanted, or no restart is left."""
        while (cause := await self._attempt(name, wait_s)) is not None and self._expected() < self.wanted:
            if not self._restarts.left(name):
                return self._give_up(cause)
            wait_s = self._restarts.allow(name, cause)
            self.creating.add(name)

    async def _attempt(self, name: str, wait_s: float) -> str | None:
        """Starts one member after `wait_s`. The cause if it did not come up; None if it did, or was asked to leave."""
        began = time.time()
        await asyncio.sleep(wait_s)
        created = time.time()
        try:
            member = await self._created(name)
        except ActorError as error:
            return self._failed(name, reason_of(error))
        self.converge()  # fewer may be wanted by now
        try:
            await within({name: member.actor.call(READY)}, self._ready_s, "restart")
            start_s = time.time() - created
            held_s = await self._admit(member)
        except (RuntimeError, TimeoutError) as error:
            if member.state is State.RETIRED:
                return None
            self._end(member, State.DEAD)
            return self._failed(name, str(error))
        if member.state is State.HEALTHY:
            self._record(name, "joined", began, held_s=held_s, start_s=start_s)
        return None

    async def _created(self, name: str) -> Member[P]:
        """Creates the process of a member, in a thread of its own: many may be created at a time, they wait for each
        other, and they must not occupy the thread pool through which the learner is asked."""
        try:
            actor = await asyncio.get_running_loop().run_in_executor(OwnThread(), self._create, name)
        finally:
            self.creating.discard(name)
        return self.members.join(name, actor)

    def _failed(self, name: str, cause: str) -> str:
        self._record(name, "join_failed", time.time(), cause=cause)
        log.error("%s did not come up: %s", name, cause)
        self._failure = cause
        return cause

    # -- members that go -----------------------------------------------------------------------------------------------

    def on_death(self, member: Member[P], cause: str) -> None:
        """Ends a member that is dead or unusable, and starts a successor unless there are enough without it. A
        second call does nothing. RuntimeError if no restart is left."""
        if member.state in FINAL:
            return
        if member.state is State.DRAINING:
            self._record(member.name, "left", time.time(), how="died", calls=len(member.calls), held_s=0.0)
        self._end(member, State.DEAD)
        if self._expected() < self.wanted:
            self.start(member.name, self._restarts.allow(member.name, cause))

    def _end(self, member: Member[P], state: State) -> None:
        if member.state not in FINAL:
            self.members.move(member, state)
            member.actor.kill()

    def _cut_off(self, member: Member[P]) -> None:
        began, started = time.perf_counter(), time.time()
        calls = member.cut_off()
        self._end(member, State.RETIRED)
        self._record(member.name, "left", started, how="cut off", calls=calls, held_s=time.perf_counter() - began)

    async def _drain(self, member: Member[P], within_s: float) -> None:
        """Lets a draining member finish its calls, each of which has a bound of its own, within `within_s`."""
        started = time.time()
        try:
            await bounded(member.idle(), min(self._call_s, within_s))
        except TimeoutError:
            log.warning("%s did not finish its groups in time and is cut off", member.name)
        if member.calls and member.state not in FINAL:
            self._cut_off(member)
        if self._stop is not None and member.state not in FINAL:
            member.stopping = True
            await self._stopped(member.name, self._stop(member.actor))
        if member.state not in FINAL:
            began = time.perf_counter()
            self._end(member, State.RETIRED)
            self._record(member.name, "left", started, how="drained", calls=0, held_s=time.perf_counter() - began)

    async def _stopped(self, name: str, stop: Awaitable[object]) -> None:
        try:
            await stop
        except (ActorError, TimeoutError) as error:
            log.warning("%s did not stop when asked and is killed: %s", name, error)

    def kill(self) -> None:
        """Ends every member; none is replaced."""
        for member in self.members.present():
            self._end(member, State.RETIRED)

    # -- tasks ---------------------------------------------------------------------------------------------------------

    async def stop_changes(self) -> None:
        """Ends the changes under way; members stay as they are."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, change: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(change)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error("an error in a change of the %ss, which ends the run", self.members.kind, exc_info=fault)
            self._fault = fault
        self.members.changed.set()

    def _record(self, actor: str, name: str, started: float, **facts: Any) -> None:
        self._on_event(actor, name, started, time.time(), **facts)
