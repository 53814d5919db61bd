"""Resizing: brings the rollout workers and environment actors of a fleet to the wanted numbers while the run goes on.

    change                what happens                               waits for, at most
    a member arrives      its process starts; a rollout worker is    its start time-out; then another is tried while
                          stale until it has the current weights     restarts are left, then the wanted number falls
    a member drains       it gets no more work, and leaves once      `loop.group_timeout_s`, or the deadline of its
                          the calls that it serves have ended        node; then it is cut off
    a member is cut off   its calls end with `CutOff`, so that       nothing
                          their tickets are played again, uncounted
    a node will be        its members get successors elsewhere, and  until a successor is healthy, or the deadline
    taken away            drain as soon as others can do their work  is `RESERVE_S` away

Nothing of the run waits for any of these, and neither does the learner: processes are created in threads, and a new
worker loads its weights beside the run or together with all others (`Fleet.update_workers`). The process group of the
learner is not concerned. Events of each change are in `events.jsonl`; `held_s` says for how many seconds the
coordinator did nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from squelch.cluster.control.actor_errors import ActorError
from squelch.cluster.control.membership import FINAL, Member, Membership
from squelch.cluster.control.membership import MemberState as State
from squelch.cluster.control.protocols import Worker
from squelch.cluster.control.scaling import WORDS, By, Kind, Request, free_names, leavers, start_counts
from squelch.cluster.fleet.waiting import bounded

if TYPE_CHECKING:
    from squelch.cluster.fleet.fleet import Fleet

log = logging.getLogger(__name__)
STOP_S = 30.0
"""Seconds that a drained rollout worker may take to end its engine; then it is killed."""
RESERVE_S = 10.0
"""Seconds before the end of a node in which its members drain although nobody can take over."""
CUT_S = 2.0
"""Seconds before the end of a node at which its members are cut off."""


class Resizing:
    """The wanted numbers of a fleet's members. `noticed`: members whose node will be taken away, each with the time
    (of the event loop's clock) at which it is."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.wanted: dict[Kind, int] = start_counts(fleet.config)
        self.noticed: dict[Member[Any], float] = {}
        self._changes: Counter[str] = Counter()
        self._fault: BaseException | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def members(self, kind: Kind) -> Membership[Any]:
        """The members of a kind."""
        return self.fleet.workers if kind is Kind.ROLLOUT else self.fleet.players

    def leaves(self, member: Member[Any]) -> bool:
        """Whether a member is on its way out, so that nobody is to replace it when it dies."""
        return member.state is State.DRAINING or member in self.noticed

    def expected(self, kind: Kind) -> set[str]:
        """Names of the members that stay, and of those on their way in."""
        staying = {member.name for member in self.members(kind).present() if not self.leaves(member)}
        return staying | self.fleet.creating[kind]

    def lacks(self, kind: Kind) -> bool:
        """Whether fewer members stay, or are on their way in, than are wanted."""
        return len(self.expected(kind)) < self.wanted[kind]

    def complete(self) -> bool:
        """Whether every wanted member is up."""
        return all(len(self.members(kind).healthy()) == count for kind, count in self.wanted.items())

    # -- wanted numbers ------------------------------------------------------------------------------------------------

    def scale(self, request: Request) -> None:
        """Sets a wanted number, which the caller has checked, and begins to change the fleet."""
        kind, before = request.kind, self.wanted[request.kind]
        self.wanted[kind] = request.count
        facts = {"kind": kind.value, "before": before, "after": request.count, "by": request.by.value}
        self._tell("fleet", "scale", time.time(), **facts, at_once=request.at_once, reason=request.reason)
        if request.count != before:
            self._changes[f"{kind}/{'up' if request.count > before else 'down'}/{request.by}"] += 1
        self.converge(kind, request.at_once)

    def converge(self, kind: Kind, at_once: bool = False) -> None:
        """Begins the arrivals and departures that are missing to the wanted number."""
        members, expected = self.members(kind), self.expected(kind)
        if at_once:
            for member in members.members(State.DRAINING):
                self._cut_off(kind, member)
        staying = [member for member in members.present() if not self.leaves(member)]
        for member in leavers(staying, len(staying) - self.wanted[kind]):  # who is still being created leaves later
            self._leave(kind, member, at_once)
        taken = expected | {member.name for member in members.present()}
        for name in free_names(kind, taken, self.wanted[kind] - len(expected)):
            self._arrive(kind, name)

    def gave_up(self, kind: Kind, cause: str) -> None:
        """Lowers the wanted number to what there is, because a member could not be had."""
        count = len(self.expected(kind))
        if 0 < count < self.wanted[kind]:
            log.warning("%s: %d instead of %d: %s", WORDS[kind], count, self.wanted[kind], cause)
            self.scale(Request(kind, count, by=By.FAILURE, reason=f"no more could be had: {cause}"))

    # -- members that come and go --------------------------------------------------------------------------------------

    def _arrive(self, kind: Kind, name: str) -> None:
        if kind is Kind.ROLLOUT:
            self.fleet.begin_join(name)
        else:
            self.fleet.creating[kind].add(name)  # the task begins later; the next look must not take the name again
            self._begin(self._bring_up(name))

    async def _bring_up(self, name: str) -> None:
        started = time.time()
        try:
            await self.fleet.begin_player(name)
        except RuntimeError as error:
            self._tell(name, "join_failed", started, cause=str(error))
            self.gave_up(Kind.ENVIRONMENT, str(error))
            return
        if name in self.fleet.players.healthy():  # it may have been told to leave, or be wanted no more
            self._tell(name, "joined", started, held_s=0.0)

    def _leave(self, kind: Kind, member: Member[Any], at_once: bool = False, within_s: float | None = None) -> None:
        if at_once or member.state is State.STARTING:
            self._cut_off(kind, member)
        else:
            self.members(kind).move(member, State.DRAINING)
            self._begin(self._drain(kind, member, within_s))

    def _cut_off(self, kind: Kind, member: Member[Any]) -> None:
        began, started = time.perf_counter(), time.time()
        calls = member.cut_off()
        self._retire(kind, member)
        self._tell(member.name, "left", started, how="cut off", calls=calls, held_s=time.perf_counter() - began)

    async def _drain(self, kind: Kind, member: Member[Any], within_s: float | None) -> None:
        """Lets a draining member finish its calls, each of which is bounded by `loop.group_timeout_s`."""
        started, longest = time.time(), self.fleet.config.loop.group_timeout_s
        try:
            await bounded(member.idle(), longest if within_s is None else min(longest, within_s))
        except TimeoutError:
            log.warning("%s did not finish its groups in time and is cut off", member.name)
        if member.state in FINAL:
            return
        if member.calls:
            return self._cut_off(kind, member)
        if kind is Kind.ROLLOUT:
            await self._stop(member)
        if member.state not in FINAL:
            began = time.perf_counter()
            self._retire(kind, member)
            self._tell(member.name, "left", started, how="drained", calls=0, held_s=time.perf_counter() - began)

    async def _stop(self, member: Member[Worker]) -> None:
        try:
            await bounded(member.actor.stop(), STOP_S)
        except (ActorError, TimeoutError) as error:
            log.warning("%s did not stop when asked and is killed: %s", member.name, error)

    def _retire(self, kind: Kind, member: Member[Any]) -> None:
        self.members(kind).move(member, State.RETIRED)
        member.actor.kill()
        self.noticed.pop(member, None)

    # -- nodes that will be taken away ---------------------------------------------------------------------------------

    def notice(self, seconds_left: Mapping[str, float]) -> None:
        """Takes the names of the members whose nodes will be taken away, each with the seconds until then."""
        for kind in Kind:
            named = [m for m in self.members(kind).present() if m.name in seconds_left and not self.leaves(m)]
            for member in named:
                self.noticed[member] = _now() + seconds_left[member.name]
                self._changes[f"{kind}/down/{By.PREEMPTION}"] += 1
                left = seconds_left[member.name]
                self._tell(member.name, "preempted", time.time(), seconds_left=left if left < math.inf else None)
            if named:
                self.converge(kind)
            self._release(kind)

    def _release(self, kind: Kind) -> None:
        """Drains the noticed members whose work others can do, or whose time is nearly over."""
        members = self.members(kind)
        others = [member for member in members.members(State.HEALTHY) if member not in self.noticed]
        for member in members.members(State.STARTING, State.STALE, State.HEALTHY, State.SUSPECT):
            left = self.noticed.get(member, math.inf) - _now()
            if member in self.noticed and (others or left <= RESERVE_S or member.state is State.STARTING):
                self._leave(kind, member, within_s=max(0.0, left - CUT_S))
        self.noticed = {member: at for member, at in self.noticed.items() if member.state not in FINAL}

    # -- figures and end -----------------------------------------------------------------------------------------------

    def take_figures(self) -> dict[str, float]:
        """Flat figures: the wanted numbers, and their changes since the last call. Raises an error that no change
        expects, a bug."""
        if self._fault is not None:
            raise self._fault
        flat = {f"wanted/{kind}": float(count) for kind, count in self.wanted.items()}
        flat |= {f"scalings/{change}": float(count) for change, count in self._changes.items()}
        self._changes.clear()
        return flat

    async def stop(self) -> None:
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
            self._fault = fault

    def _tell(self, actor: str, name: str, started: float, **facts: Any) -> None:
        self.fleet.on_event(actor, name, started, time.time(), **facts)


def _now() -> float:
    return asyncio.get_running_loop().time()
