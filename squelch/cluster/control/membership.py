"""Membership: the rollout workers and environment actors of a run, a set that changes by one table of moves. Pure.

    starting   created; its process starts
    stale      ready, but without the current weights (environment actors hold no weights and skip this state)
    healthy    ready for work; only a healthy member gets work
    suspect    its work failed; it gets no work until a health check answers
    draining   finishes the calls under way and gets no more; retired when they have ended or were cut off
    dead       its process is gone or was ended; final
    retired    left in good order; final

A name belongs to one member at a time: a successor may take the name only of a member that is dead or retired. Every
change sets `changed`, so that callers wait for a change instead of polling.

`at_work` registers a call with the members that serve it, so that a draining member knows when its work is done, and so
that a member can be removed at once: `Member.cut_off` ends its calls with `CutOff`, which does not count as a failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, TypeVar

from squelch.cluster.control.actor_errors import ActorError

P = TypeVar("P")
T = TypeVar("T")


class CutOff(Exception):
    """A member that served the call was removed at once; the work must be retried, and this attempt does not count."""


class MemberState(StrEnum):
    """State of one member; see the module's head."""

    STARTING = "starting"
    STALE = "stale"
    HEALTHY = "healthy"
    SUSPECT = "suspect"
    DRAINING = "draining"
    DEAD = "dead"
    RETIRED = "retired"


S = MemberState
FINAL = frozenset({S.DEAD, S.RETIRED})
WORKER_MOVES: Mapping[MemberState, frozenset[MemberState]] = {
    S.STARTING: frozenset({S.STALE, S.DEAD, S.RETIRED}),
    S.STALE: frozenset({S.HEALTHY, S.DRAINING, S.DEAD, S.RETIRED}),
    S.HEALTHY: frozenset({S.STALE, S.SUSPECT, S.DRAINING, S.DEAD, S.RETIRED}),
    S.SUSPECT: frozenset({S.HEALTHY, S.STALE, S.DRAINING, S.DEAD, S.RETIRED}),
    S.DRAINING: frozenset({S.DEAD, S.RETIRED}),
    S.DEAD: frozenset(),
    S.RETIRED: frozenset(),
}
"""Legal moves of a rollout worker."""
PLAYER_MOVES: Mapping[MemberState, frozenset[MemberState]] = {
    state: (moves - {S.STALE}) | ({S.HEALTHY} if state is S.STARTING else frozenset())
    for state, moves in WORKER_MOVES.items()
    if state is not S.STALE
}
"""Legal moves of an environment actor: the same without the stale state."""


@dataclass(eq=False)
class Member(Generic[P]):
    """One member. `actor`: the object that receives its calls; it distinguishes two members of the same name."""

    name: str
    actor: P
    state: MemberState = S.STARTING
    calls: set[_Call] = field(default_factory=set)
    """Calls under way that it serves (`at_work`)."""
    removed: bool = False
    """Whether its calls were cut off."""
    stopping: bool = False
    """Whether it was asked to end, after its last call: that it answers nothing from then on is no loss."""
    _idle: asyncio.Event = field(default_factory=asyncio.Event)

    def cut_off(self) -> int:
        """Ends the calls that it serves with `CutOff`; returns their number."""
        self.removed = True
        for call in self.calls:
            call.cut_off()
        return len(self.calls)

    async def idle(self) -> None:
        """Returns once it serves no call. It has no time-out: the caller bounds it."""
        while self.calls:
            self._idle.clear()
            await self._idle.wait()

    def end(self, call: _Call) -> None:
        """Forgets a call that has ended."""
        self.calls.discard(call)
        self._idle.set()


class _Call:
    """A call under way. It runs in the task that awaits it: every group is a call, and a task costs as much as it."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task, self._cancelling = task, task.cancelling()
        self._cut = 0

    def cut_off(self) -> None:
        """Cancels it, once."""
        if not self._cut:
            self._cut = 1
            self._task.cancel()

    def task_is_cancelled(self) -> bool:
        """Whether its task is being cancelled as a whole."""
        return self._task.cancelling() > self._cancelling + self._cut

    def end(self) -> None:
        """Takes the cancellation by `cut_off` back, so that its task goes on."""
        if self._cut:
            self._task.uncancel()


async def at_work(work: Coroutine[Any, Any, T], *members: Member[Any]) -> T:
    """The result of work that these members serve; CutOff if one of them was removed at once, before or meanwhile."""
    if any(member.removed for member in members):
        work.close()
        raise _cut_off(members)
    task = asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"
    call = _Call(task)
    for member in members:
        member.calls.add(call)
    try:
        return await work
    except (asyncio.CancelledError, ActorError, TimeoutError) as error:
        if any(member.removed for member in members) and not call.task_is_cancelled():
            raise _cut_off(members) from error
        raise
    finally:
        for member in members:
            member.end(call)
        call.end()


def _cut_off(members: Sequence[Member[Any]]) -> CutOff:
    return CutOff(f"{', '.join(member.name for member in members if member.removed)} was removed")


class Membership(Generic[P]):
    """The members of one kind, by name, in the order in which their names first joined."""

    def __init__(self, kind: str, moves: Mapping[MemberState, frozenset[MemberState]]) -> None:
        self.kind, self._moves = kind, moves
        self._members: dict[str, Member[P]] = {}
        self._healthy: list[Member[P]] | None = []
        self._actors: Mapping[str, P] = {}
        """The healthy members and their actors; every ticket asks for them, so they are listed once per change."""
        self.changed = asyncio.Event()

    def join(self, name: str, actor: P) -> Member[P]:
        """Adds a member in the state starting. RuntimeError while the name's member is neither dead nor retired."""
        old = self._members.get(name)
        if old is not None and old.state not in FINAL:
            raise RuntimeError(f"{self.kind} {name} joins while another {name} is {old.state}")
        member = self._members[name] = Member(name, actor)
        self._note_change()
        return member

    def move(self, member: Member[P], state: MemberState) -> None:
        """Moves a member to a state. RuntimeError, which names both states, if the table forbids the move."""
        if state not in self._moves[member.state]:
            raise RuntimeError(f"{self.kind} {member.name} is {member.state} and cannot become {state}")
        member.state = state
        self._note_change()

    def _note_change(self) -> None:
        self._healthy = None
        self.changed.set()

    def current(self, name: str) -> Member[P] | None:
        """The newest member of this name, also when it has ended; None if no member had the name."""
        return self._members.get(name)

    def members(self, *states: MemberState) -> list[Member[P]]:
        """Members in any of the states (without an argument: all members), in order of joining."""
        return [member for member in self._members.values() if not states or member.state in states]

    def _able(self) -> list[Member[P]]:
        if self._healthy is None:
            self._healthy = self.members(S.HEALTHY)
            self._actors = {member.name: member.actor for member in self._healthy}
        return self._healthy

    def healthy(self) -> Mapping[str, P]:
        """The healthy members' actors by name; only they get work."""
        self._able()
        return self._actors

    def in_turn(self, turn: int) -> Member[P]:
        """The `turn`-th of the healthy members, modulo their number. There must be one."""
        able = self._able()
        return able[turn % len(able)]

    def present(self) -> list[Member[P]]:
        """Members that are neither dead nor retired."""
        return [member for member in self._members.values() if member.state not in FINAL]

    def states(self) -> dict[str, MemberState]:
        """The state of each member by name."""
        return {member.name: member.state for member in self._members.values()}

    async def change(self) -> None:
        """Returns after the next join or move. It has no time-out: the caller must know that a change will come."""
        self.changed.clear()
        await self.changed.wait()
