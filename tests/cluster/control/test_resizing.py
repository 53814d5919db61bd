"""Who starts and who leaves: the rule alone, without processes."""

from __future__ import annotations

import math
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from squelch.cluster.control.membership import WORKER_MOVES, Member, Membership
from squelch.cluster.control.membership import MemberState as State
from squelch.cluster.control.resizing import CUT_S, RESERVE_S, Actions, Resizing
from squelch.cluster.control.scaling import Kind, name_of

EVENTS = ("scale", "at once", "join", "ready", "healthy", "notice", "release", "end", "die")


class Drill:
    """A pool without processes: takes actions, and lets members come and go as it is told."""

    def __init__(self, count: int) -> None:
        self.members: Membership[str] = Membership("rollout worker", WORKER_MOVES)
        self.resizing: Resizing[str] = Resizing(Kind.ROLLOUT, count)
        self.creating: list[str] = []
        self.now = 0.0
        for index in range(count):
            self.up(self.members.join(name_of(Kind.ROLLOUT, index), ""))

    def up(self, member: Member[str]) -> None:
        for state in (State.STALE, State.HEALTHY):
            self.members.move(member, state)

    def names(self, *states: State) -> list[str]:
        return [member.name for member in self.members.members(*states)]

    def take(self, actions: Actions[str]) -> Actions[str]:
        present = {member.name for member in self.members.present()}
        assert not {*actions.start} & (present | {*self.creating}), "no name is given twice"
        assert len({*actions.start}) == len(actions.start)
        for member in actions.cut:
            self.members.move(member, State.RETIRED)
        for member in actions.drain:
            self.members.move(member, State.DRAINING)
        self.creating += actions.start
        return actions

    def converge(self, at_once: bool = False) -> Actions[str]:
        return self.take(self.resizing.converge(self.members.present(), self.creating, at_once))

    def scale(self, count: int, at_once: bool = False) -> Actions[str]:
        self.resizing.wanted = count
        return self.converge(at_once)

    def join(self) -> None:
        """The process that was asked for first is created."""
        if self.creating:
            self.members.join(self.creating.pop(0), "")
            self.converge()

    def notice(self, *names: str, seconds: float = math.inf) -> Actions[str]:
        if self.resizing.notice(self.members.present(), dict.fromkeys(names, seconds), self.now):
            self.converge()
        return self.take(self.resizing.release(self.members.present(), self.now))

    def step(self, event: str, number: int) -> None:
        """Lets one thing happen, to the `number`-th of those to whom it can."""
        moves = {
            "ready": (State.STARTING, State.STALE),
            "healthy": (State.STALE, State.HEALTHY),
            "end": (State.DRAINING, State.RETIRED),
            "die": (State.HEALTHY, State.DEAD),
        }
        acts: dict[str, Callable[[], object]] = {
            "scale": lambda: self.scale(1 + number),
            "at once": lambda: self.scale(1 + number, at_once=True),
            "join": self.join,
            "notice": lambda: self.notice(name_of(Kind.ROLLOUT, number), seconds=60.0),
            "release": self.notice,
        }
        if event in acts:
            acts[event]()
        elif able := self.members.members(moves[event][0]):
            self.members.move(able[number % len(able)], moves[event][1])
            self.converge()


@given(st.integers(1, 4), st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 5)), max_size=40))
def test_whatever_happens_the_pool_ends_with_as_many_members_as_are_wanted(
    count: int, events: list[tuple[str, int]]
) -> None:
    drill = Drill(count)
    for event, number in events:
        drill.now += 1.0
        drill.step(event, number)
    drill.now += 1000.0
    for _ in range(20):
        for event in ("join", "ready", "healthy", "release", "end"):
            drill.step(event, 0)
    assert not drill.creating and len(drill.names(State.HEALTHY)) == drill.resizing.wanted
    assert drill.names(State.HEALTHY) == [member.name for member in drill.members.present()]


def test_fewer_are_wanted_after_all_nodes_were_taken_away_and_nobody_starts() -> None:
    """Free names were once counted with a negative number, and eight members started to end one."""
    drill = Drill(10)
    drill.notice(*drill.names())
    for _ in range(10):
        drill.join()
    for member in drill.members.members(State.STARTING):
        drill.up(member)
    drill.notice()
    for member in drill.members.members(State.DRAINING):
        drill.members.move(member, State.RETIRED)
    assert drill.names(State.HEALTHY) == [name_of(Kind.ROLLOUT, index) for index in range(10, 20)]
    actions = drill.scale(9)
    assert not actions.start and [member.name for member in actions.drain] == ["rollout-19"]


def test_who_still_starts_is_cut_off_and_who_works_drains_unless_it_is_to_leave_at_once() -> None:
    drill = Drill(2)
    assert drill.scale(4).start == ["rollout-2", "rollout-3"]
    drill.join()
    actions = drill.scale(1)
    assert [member.name for member in actions.cut] == ["rollout-2"], "rollout-3 is still being created"
    assert {member.name: within_s for member, within_s in actions.drain.items()} == {"rollout-1": math.inf}
    actions = drill.scale(1, at_once=True)
    assert [member.name for member in actions.cut] == ["rollout-1"] and not actions.drain
    drill.join()
    assert drill.names(State.HEALTHY) == ["rollout-0"] and drill.members.current("rollout-3").state is State.RETIRED


def test_a_member_whose_node_ends_works_until_another_can_or_the_end_is_near() -> None:
    drill = Drill(2)
    actions = drill.notice("rollout-0", "rollout-1", seconds=60.0)
    assert not actions.drain and drill.creating == ["rollout-2", "rollout-3"]
    drill.now = 60.0 - RESERVE_S
    actions = drill.notice()
    assert {member.name: left for member, left in actions.drain.items()} == {
        "rollout-0": RESERVE_S - CUT_S,
        "rollout-1": RESERVE_S - CUT_S,
    }
    drill = Drill(2)
    assert [member.name for member in drill.notice("rollout-0", seconds=60.0).drain] == ["rollout-0"], "rollout-1 can"
