"""Bounds, names, and who leaves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squelch.cluster.config import load
from squelch.cluster.control.membership import FINAL, PLAYER_MOVES, WORKER_MOVES, Membership
from squelch.cluster.control.membership import MemberState as State
from squelch.cluster.control.scaling import LEAVING_ORDER, Kind, free_names, leavers, refusal, start_counts, start_names
from squelch.kit.base.errors import UserError


def test_a_run_starts_with_the_recipes_numbers_and_auto_with_the_least() -> None:
    config = load("frozenlake", ["rollout.count=auto", "rollout.min_count=2", "rollout.max_count=5"])
    assert start_counts(config) == {Kind.ROLLOUT: 2, Kind.ENVIRONMENT: config.environment_actor.count}
    assert start_names(config, Kind.ROLLOUT) == ["rollout-0", "rollout-1"]
    config = load("frozenlake", ["rollout.count=3"])
    assert start_counts(config)[Kind.ROLLOUT] == 3
    assert not refusal(config, Kind.ROLLOUT, 1000), "the cluster is the bound where no other is set"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rollout.count=0"], r"rollout\.count: must be a whole number of 1 or more, or auto \(given 0\)"),
        (["rollout.count=Auto"], r"rollout\.count: must be a whole number of 1 or more, or auto"),
        (["rollout.count=auto"], r"set rollout\.max_count"),
        (["rollout.count=5", "rollout.max_count=4"], r"min_count <= count <= max_count"),
        (["rollout.count=1", "rollout.min_count=2"], r"min_count <= count <= max_count"),
    ],
)
def test_numbers_that_cannot_be_are_refused_by_name(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load("frozenlake", words)


@given(st.sets(st.integers(0, 9)), st.integers(0, 5))
def test_names_are_the_lowest_that_are_free(taken: set[int], count: int) -> None:
    names = free_names(Kind.ENVIRONMENT, {f"env-{index}" for index in taken}, count)
    free = [index for index in range(20) if index not in taken]
    assert names == [f"env-{index}" for index in free[:count]]


def test_every_state_that_has_not_ended_has_a_place_among_those_that_leave() -> None:
    assert {*LEAVING_ORDER, State.DRAINING} == set(WORKER_MOVES) - FINAL
    for state in LEAVING_ORDER:
        for moves in (WORKER_MOVES, PLAYER_MOVES):
            assert state not in moves or State.RETIRED in moves[state], "a member may be told to leave in any state"
            assert state in (State.STARTING,) or state not in moves or State.DRAINING in moves[state]


def test_those_leave_first_who_do_no_work_and_of_equals_the_newest() -> None:
    members: Membership[str] = Membership("rollout worker", WORKER_MOVES)
    reached = {"a": State.HEALTHY, "b": State.HEALTHY, "c": State.STALE, "d": State.STARTING, "e": State.SUSPECT}
    for name, state in reached.items():
        member = members.join(name, name)
        for step in (State.STALE, State.HEALTHY, State.SUSPECT):
            if member.state is not state:
                members.move(member, step)
    assert [member.name for member in leavers(members.present(), 9)] == ["d", "c", "e", "b", "a"]
    assert [member.name for member in leavers(members.present(), 2)] == ["d", "c"]
    assert leavers(members.present(), -1) == []
