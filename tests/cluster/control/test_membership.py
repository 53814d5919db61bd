"""The table of moves, and who counts as whom under any order of joins and moves."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squelch.cluster.control.membership import FINAL, PLAYER_MOVES, WORKER_MOVES, CutOff, Member, Membership, at_work
from squelch.cluster.control.membership import MemberState as State

TABLES = [WORKER_MOVES, PLAYER_MOVES]


@pytest.mark.parametrize("moves", TABLES)
def test_every_state_is_reached_from_starting_and_the_final_ones_are_left_by_none(moves) -> None:
    reached, frontier = {State.STARTING}, [State.STARTING]
    while frontier:
        new = moves[frontier.pop()] - reached
        reached |= new
        frontier += new
    assert reached == set(moves)
    assert all(not moves[state] for state in FINAL)
    assert all(State.DEAD in moves[state] for state in set(moves) - FINAL), "anything may die at any time"
    assert all(State.STARTING not in targets for targets in moves.values())


def test_a_worker_is_healthy_only_after_it_was_stale_and_an_environment_actor_is_never_stale() -> None:
    assert State.HEALTHY not in WORKER_MOVES[State.STARTING]
    assert State.HEALTHY in PLAYER_MOVES[State.STARTING]
    assert State.STALE not in PLAYER_MOVES and all(State.STALE not in moves for moves in PLAYER_MOVES.values())


def test_a_draining_member_is_given_nothing_and_never_comes_back() -> None:
    members: Membership[str] = Membership("rollout worker", WORKER_MOVES)
    member = members.join("w", "actor")
    for state in (State.STALE, State.HEALTHY):
        members.move(member, state)
    assert members.healthy() == {"w": "actor"}
    members.move(member, State.DRAINING)
    assert members.healthy() == {} and members.present() == [member]
    with pytest.raises(RuntimeError, match="rollout worker w is draining and cannot become healthy"):
        members.move(member, State.HEALTHY)


def test_a_name_is_free_again_once_its_member_has_ended() -> None:
    members: Membership[str] = Membership("environment actor", PLAYER_MOVES)
    first = members.join("env-0", "first")
    with pytest.raises(RuntimeError, match="env-0 joins while another env-0 is starting"):
        members.join("env-0", "second")
    members.move(first, State.DEAD)
    second = members.join("env-0", "second")
    assert members.current("env-0") is second and members.present() == [second]
    with pytest.raises(RuntimeError, match="is dead and cannot become healthy"):
        members.move(first, State.HEALTHY)


@given(st.sampled_from(TABLES), st.lists(st.tuples(st.integers(0, 3), st.sampled_from(State)), max_size=60))
def test_whatever_is_tried_only_the_table_moves_members_and_only_healthy_ones_are_given_work(moves, tries) -> None:
    members: Membership[int] = Membership("member", moves)
    seen: dict[int, Member[int]] = {}
    for number, (name, state) in enumerate(tries):
        current = members.current(str(name))
        if current is None or current.state in FINAL:
            seen[number] = members.join(str(name), number)
            continue
        old = current.state
        try:
            members.move(current, state)
        except RuntimeError:
            assert state not in moves[old] and current.state is old
        else:
            assert state in moves[old] and current.state is state
        assert set(members.healthy().values()) == {
            m.actor for m in seen.values() if m.state is State.HEALTHY and members.current(m.name) is m
        }
        assert len(members.present()) <= 4


def test_a_waiter_is_woken_by_the_next_move() -> None:
    async def wait() -> None:
        members: Membership[str] = Membership("member", PLAYER_MOVES)
        member = members.join("a", "actor")
        waiting = asyncio.ensure_future(members.change())
        await asyncio.sleep(0)
        assert not waiting.done()
        members.move(member, State.HEALTHY)
        await asyncio.wait_for(waiting, 180)

    asyncio.run(wait())


def test_work_goes_to_the_healthy_members_in_turn() -> None:
    members: Membership[str] = Membership("rollout worker", WORKER_MOVES)
    joined = [members.join(name, name) for name in "abc"]
    for member in joined:
        members.move(member, State.STALE)
        members.move(member, State.HEALTHY)
    assert [members.in_turn(turn).name for turn in range(4)] == ["a", "b", "c", "a"]
    members.move(joined[1], State.SUSPECT)
    assert [members.in_turn(turn).name for turn in range(3)] == ["a", "c", "a"]
    members.move(joined[1], State.HEALTHY)
    assert members.in_turn(1) is joined[1] and list(members.healthy()) == ["a", "b", "c"]


def test_a_call_runs_in_its_callers_task_which_goes_on_after_a_cut_and_ends_when_it_is_cancelled() -> None:
    async def scenario() -> None:
        member, found = Member("worker-0", object()), []

        async def work() -> None:
            found.append(asyncio.current_task())
            await asyncio.sleep(3600)

        async def caller() -> str:
            with pytest.raises(CutOff):
                await at_work(work(), member)
            await asyncio.sleep(0)
            return "goes on"

        cut, both = (asyncio.create_task(caller()) for _ in range(2))
        await asyncio.sleep(0)
        assert found == [cut, both] and member.cut_off() == 2
        both.cancel()
        assert await cut == "goes on" and cut.cancelling() == 0 and not member.calls
        with pytest.raises(asyncio.CancelledError):
            await both

    asyncio.run(scenario())
