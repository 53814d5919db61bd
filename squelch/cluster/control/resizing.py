"""Resizing: which members of one kind start and which leave, so that there are as many as wanted. Pure.

    event                          action
    more are wanted                members start, under the lowest names that are free
    fewer are wanted               the members that are cheapest to lose leave: a member that still starts is cut off,
                                   any other drains
    fewer are wanted at once       they are cut off, and with them those that drain already
    a node will be taken away      its members get successors; they drain once another healthy member can do their work,
                                   at the latest `RESERVE_S` before the node's end

`cluster.fleet.pool` executes these actions, and asks again whenever a member has joined or the wanted number has
changed. Nothing here waits, and no member's state is changed here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from squelch.cluster.control.membership import FINAL, Member
from squelch.cluster.control.membership import MemberState as State
from squelch.cluster.control.scaling import Kind, free_names, leavers

P = TypeVar("P")
RESERVE_S = 10.0
"""Seconds before the end of a node in which its members drain although no other member can do their work."""
CUT_S = 2.0
"""Seconds before the end of a node at which its members are cut off."""


@dataclass(frozen=True)
class Actions(Generic[P]):
    """The changes that a pool must make."""

    cut: Sequence[Member[P]] = ()
    """Members that are cut off: they leave now, and their calls end."""
    drain: Mapping[Member[P], float] = field(default_factory=dict)
    """Members that drain, each with the seconds after which it is cut off."""
    start: Sequence[str] = ()
    """Names of the members that start."""


class Resizing(Generic[P]):
    """The wanted number of members of a kind, and the members whose node will be taken away. The methods take the
    members that are neither dead nor retired (`present`) and the names of those whose processes are being created
    (`creating`); times are seconds of one clock."""

    def __init__(self, kind: Kind, wanted: int) -> None:
        self.kind, self.wanted = kind, wanted
        self._ends: dict[Member[P], float] = {}
        """Members whose node will be taken away, each with the time at which it is."""

    def _staying(self, present: Sequence[Member[P]]) -> list[Member[P]]:
        return [member for member in present if member.state is not State.DRAINING and member not in self._ends]

    def expected(self, present: Sequence[Member[P]], creating: Collection[str]) -> set[str]:
        """Names of the members that stay, and of those on their way in."""
        return {member.name for member in self._staying(present)} | set(creating)

    def converge(self, present: Sequence[Member[P]], creating: Collection[str], at_once: bool = False) -> Actions[P]:
        """The departures and arrivals that are missing to the wanted number. `at_once`: nobody drains."""
        staying, expected = self._staying(present), self.expected(present, creating)
        leaving = leavers(staying, len(staying) - self.wanted)  # a member that is still being created leaves later
        cut = [member for member in leaving if at_once or member.state is State.STARTING]
        if at_once:
            cut += [member for member in present if member.state is State.DRAINING]
        drain = {member: math.inf for member in leaving if member not in cut}
        taken = expected | {member.name for member in present}
        return Actions(cut, drain, free_names(self.kind, taken, max(0, self.wanted - len(expected))))

    def notice(self, present: Sequence[Member[P]], seconds_left: Mapping[str, float], now: float) -> list[Member[P]]:
        """Takes the names of the members whose node will be taken away, each with the seconds until then; returns the
        members for which that is new."""
        news = [member for member in self._staying(present) if member.name in seconds_left]
        self._ends |= {member: now + seconds_left[member.name] for member in news}
        return news

    def release(self, present: Sequence[Member[P]], now: float) -> Actions[P]:
        """The members that leave now because their node will be taken away."""
        self._ends = {member: end for member, end in self._ends.items() if member.state not in FINAL}
        others = any(member.state is State.HEALTHY for member in self._staying(present))
        left = {member: end - now for member, end in self._ends.items() if member.state is not State.DRAINING}
        cut = [member for member in left if member.state is State.STARTING]
        due = [member for member in left if member not in cut and (others or left[member] <= RESERVE_S)]
        return Actions(cut, {member: max(0.0, left[member] - CUT_S) for member in due})
