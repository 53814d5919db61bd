"""Who takes part in a run: rollout workers and environment actors as a set that changes, by one table of moves. Pure.

    starting   created; its process comes up
    stale      ready, but without the current weights (environment actors hold none and skip this state)
    healthy    may be given work; the only state in which it may
    suspect    its work failed and it is asked whether it is alive; it is given nothing meanwhile
    draining   finishes what it has and is given nothing more
    dead       its process is gone or was ended; final
    retired    left in good order; final

A name stands for one member at a time: a successor may take the name of a member that is dead or retired, and no other.
Every change sets `changed`, so that callers can wait for a member instead of polling for one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

P = TypeVar("P")


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


@dataclass
class Member(Generic[P]):
    """One member. `party`: the object that is called; two members of one name are told apart by it."""

    name: str
    party: P
    state: MemberState = S.STARTING


class Membership(Generic[P]):
    """The members of one kind, by name, in the order in which their names first joined."""

    def __init__(self, kind: str, moves: Mapping[MemberState, frozenset[MemberState]]) -> None:
        self.kind, self._moves = kind, moves
        self._members: dict[str, Member[P]] = {}
        self.changed = asyncio.Event()

    def join(self, name: str, party: P) -> Member[P]:
        """A new member, starting. Raises RuntimeError while another member of that name is not dead or retired."""
        old = self._members.get(name)
        if old is not None and old.state not in FINAL:
            raise RuntimeError(f"{self.kind} {name} joins while another {name} is {old.state}")
        member = self._members[name] = Member(name, party)
        self.changed.set()
        return member

    def move(self, member: Member[P], state: MemberState) -> None:
        """Moves a member. Raises RuntimeError with both states for a move that the table does not allow."""
        if state not in self._moves[member.state]:
            raise RuntimeError(f"{self.kind} {member.name} is {member.state} and cannot become {state}")
        member.state = state
        self.changed.set()

    def current(self, name: str) -> Member[P] | None:
        """The member that has this name now, ended or not; None for a name that never joined."""
        return self._members.get(name)

    def members(self, *states: MemberState) -> list[Member[P]]:
        """Members in any of the states (all without an argument), in order of joining."""
        return [member for member in self._members.values() if not states or member.state in states]

    def healthy(self) -> dict[str, P]:
        """Those that may be given work, by name."""
        return {member.name: member.party for member in self.members(S.HEALTHY)}

    def present(self) -> list[Member[P]]:
        """Members that are neither dead nor retired."""
        return [member for member in self._members.values() if member.state not in FINAL]

    def states(self) -> dict[str, MemberState]:
        """State by name."""
        return {member.name: member.state for member in self._members.values()}

    async def change(self) -> None:
        """Returns after the next join or move. The caller must know that one will come; it sets no bound."""
        self.changed.clear()
        await self.changed.wait()
