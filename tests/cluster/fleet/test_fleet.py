"""The fleet on fakes: who is started, who is replaced by whom, who joins when, and who is late."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from squelch.actors.messages import WeightBundle
from squelch.cluster.control.membership import MemberState as State
from squelch.cluster.control.scaling import WORDS, Kind, Request, name_of
from squelch.cluster.fleet.fleet import Fleet, UpdateFailed
from squelch.cluster.fleet.waiting import bounded, outcomes, within
from tests.fakes import clock
from tests.fakes.actors import FakeActors, Fault, World
from tests.fakes.run import settings
from tests.fakes.transport import behind

Steps = Callable[[Fleet], Awaitable[Any]]


def bundle(version: int) -> WeightBundle:
    return WeightBundle(version, (), f"sum-{version}", np.zeros(1, np.int32), np.zeros(0, np.float32))


def run(world: World, steps: Steps) -> tuple[Fleet, list[tuple[str, str]]]:
    """Starts a fleet, publishes version 1, takes the steps, stops it; the fleet and its events (actor, name), without
    joins."""
    reported: list[tuple[str, str]] = []

    def tell(actor: str, name: str, *_: float, **__: Any) -> None:
        reported.extend([(actor, name)] if name != "joined" else [])

    async def main() -> Fleet:
        fleet = Fleet(world.config, FakeActors(world), tell)
        try:
            await fleet.start()
            await fleet.update_workers(bundle(1))
            await steps(fleet)
        finally:
            await fleet.stop()
        return fleet

    return clock.run(main()), reported


def world(tmp_path: Path, *faults: Fault, overrides: tuple[str, ...] = ()) -> World:
    return World(settings(tmp_path, *overrides), faults)


async def lose(fleet: Fleet, name: str) -> None:
    pool = fleet.worker_pool if name.startswith("rollout") else fleet.player_pool
    member = pool.members.current(name)
    assert member is not None
    pool.on_death(member, "killed")


async def settle(fleet: Fleet) -> None:
    """Until no member is on its way in."""
    for pool in fleet.pools.values():
        while pool.creating or pool.members.members(State.STARTING, State.STALE):
            await pool.members.change()


def states(fleet: Fleet) -> dict[str, str]:
    return {name: state.value for name, state in fleet.workers.states().items()}


def test_workers_are_healthy_only_once_they_hold_a_published_version(tmp_path: Path) -> None:
    seen: list[Any] = []

    async def main() -> None:
        fleet = Fleet(settings(tmp_path), FakeActors(world(tmp_path)), lambda *_, **__: None)
        await fleet.start()
        seen.append((states(fleet), list(fleet.players.healthy()), fleet.up()["rollout-0"]))
        await fleet.update_workers(bundle(0))
        seen.append((states(fleet), list(fleet.players.healthy()), fleet.up()["rollout-0"]))
        await fleet.stop()
        seen.append(states(fleet))

    clock.run(main())
    players = ["env-0", "env-1"]
    assert seen[0] == ({"rollout-0": "stale", "rollout-1": "stale"}, players, False)
    assert seen[1] == ({"rollout-0": "healthy", "rollout-1": "healthy"}, players, True)
    assert seen[2] == {"rollout-0": "retired", "rollout-1": "retired"}


def test_an_evaluation_starts_no_learner_and_plays_the_weights_that_workers_were_started_with(tmp_path: Path) -> None:
    actors = FakeActors(world(tmp_path))

    async def main() -> None:
        fleet = Fleet(settings(tmp_path), actors, lambda *_, **__: None)
        await fleet.start(learning=False)
        assert list(fleet.workers.healthy()) == ["rollout-0", "rollout-1"]
        await fleet.stop()

    clock.run(main())
    assert actors.made == {"worker": 2, "player": 2}


def test_an_actor_that_does_not_start_is_named(tmp_path: Path) -> None:
    late = (
        r"^start: rollout-1 did not answer within 30 s \(cluster\.start_timeout_s\); free in the cluster: 1 of 8 CPU$"
    )
    with pytest.raises(TimeoutError, match=late):
        run(world(tmp_path, Fault("worker.ready", 2, "hang")), settle)
    with pytest.raises(RuntimeError, match=r"^start: env-0 failed: env-0 is gone$"):
        run(world(tmp_path, Fault("player.ready", 1)), settle)


@pytest.mark.parametrize(("part", "call"), [("rollout", "worker.ready"), ("learner", "learner.start")])
def test_a_part_whose_bound_is_longer_is_not_cut_off_by_that_of_all_actors(
    tmp_path: Path, part: str, call: str
) -> None:
    named = r"rollout-0 did not answer within 90 s \(rollout\.start_timeout_s\)|learner failed: .*within 90 s"
    overrides = (f"{part}.start_timeout_s=90",)
    with pytest.raises((TimeoutError, RuntimeError), match=named):
        run(world(tmp_path, Fault(call, 1, "hang"), overrides=overrides), settle)


@pytest.mark.parametrize("call", ["player.ready", "player.set_workers"])
def test_an_environment_actor_that_hangs_at_the_start_is_replaced_while_another_is_up(
    tmp_path: Path, call: str
) -> None:
    fleet, reported = run(world(tmp_path, Fault(call, 2, "hang")), settle)
    assert reported == [("env-1", "restart")]
    assert [member.name for member in fleet.players.members()] == ["env-0", "env-1"]


@pytest.mark.parametrize(("call", "setting"), [("ready", "start_timeout_s"), ("set_workers", "hung_after_s")])
def test_a_start_whose_environment_actors_all_hang_names_them_and_the_setting(
    tmp_path: Path, call: str, setting: str
) -> None:
    faults = [Fault(f"player.{call}", number, "hang") for number in (1, 2)]
    late = rf"^{'start' if call == 'ready' else call}: env-0, env-1 did not answer within \d+ s \(cluster\.{setting}\)"
    with pytest.raises(TimeoutError, match=late):
        run(world(tmp_path, *faults), settle)


def test_a_successor_has_the_current_weights_and_is_known_to_every_environment_actor_before_it_is_given_work(
    tmp_path: Path,
) -> None:
    async def steps(fleet: Fleet) -> None:
        await lose(fleet, "rollout-0")
        assert list(fleet.workers.healthy()) == ["rollout-1"]
        while "rollout-0" not in fleet.workers.healthy():
            await fleet.workers.change()
        successor = fleet.workers.current("rollout-0")
        assert behind(successor.actor).version == 1
        assert all(
            behind(one).workers["rollout-0"] is behind(successor.actor) for one in fleet.players.healthy().values()
        )

    _, reported = run(world(tmp_path), steps)
    assert reported == [("rollout-0", "restart")]


def test_a_version_published_while_a_successor_joins_reaches_it(tmp_path: Path) -> None:
    async def steps(fleet: Fleet) -> None:
        await lose(fleet, "rollout-0")
        await asyncio.sleep(1.5)  # it is up, and loading version 1
        await fleet.update_workers(bundle(2))
        await settle(fleet)
        assert [behind(worker).version for worker in fleet.workers.healthy().values()] == [2, 2]

    run(world(tmp_path), steps)


BOTH = pytest.mark.parametrize(("kind", "start"), [(Kind.ROLLOUT, "worker.ready"), (Kind.ENVIRONMENT, "player.ready")])
"""Each kind of member, and the call in which its start may fail; the successor of one of two is the third to start."""


@BOTH
@pytest.mark.parametrize("what", ["die", "hang", "fail"])
def test_a_successor_that_does_not_start_is_ended_and_reported_and_another_is_tried(
    tmp_path: Path, kind: Kind, start: str, what: str
) -> None:
    first, second = (name_of(kind, index) for index in range(2))

    async def steps(fleet: Fleet) -> None:
        await lose(fleet, first)
        await settle(fleet)
        assert list(fleet.pools[kind].members.healthy()) == [first, second]

    fleet, reported = run(world(tmp_path, Fault(start, 3, what)), steps)
    assert reported == [(first, event) for event in ("restart", "join_failed", "restart")]
    assert fleet.restarts.counts[first] == 2


def test_a_successor_that_hangs_while_it_loads_weights_is_given_up_and_another_is_tried(tmp_path: Path) -> None:
    async def steps(fleet: Fleet) -> None:
        await lose(fleet, "rollout-0")
        await settle(fleet)
        assert len(fleet.workers.healthy()) == 2

    _, reported = run(world(tmp_path, Fault("worker.update", 3, "hang")), steps)
    assert [event for _, event in reported] == ["restart", "join_failed", "restart"]


@BOTH
def test_an_old_failure_ends_no_run_whose_other_successor_is_on_its_way(tmp_path: Path, kind: Kind, start: str) -> None:
    first, second = (name_of(kind, index) for index in range(2))

    async def steps(fleet: Fleet) -> None:
        pool = fleet.pools[kind]
        await lose(fleet, first)
        await settle(fleet)
        assert list(pool.members.healthy()) == [second], "no restart is left: the run goes on with the other"
        assert pool.wanted == 1
        await lose(fleet, second)
        assert list(await pool.need()) == [second]

    run(world(tmp_path, Fault(start, 3), overrides=("cluster.max_restarts=1",)), steps)


@BOTH
def test_without_a_member_or_a_successor_the_run_ends_with_the_cause(tmp_path: Path, kind: Kind, start: str) -> None:
    async def steps(fleet: Fleet) -> None:
        for index in range(2):
            await lose(fleet, name_of(kind, index))
        await fleet.pools[kind].need()

    faults = (Fault(start, 3, "fail"), Fault(start, 4, "fail"))
    cause = rf"^no {WORDS[kind][:-1]} is left, and none is starting; the last to start failed: .*{start} failed"
    with pytest.raises(RuntimeError, match=cause):
        run(world(tmp_path, *faults, overrides=("cluster.max_restarts=1",)), steps)


@pytest.mark.parametrize("kind", list(Kind))
def test_a_death_without_a_restart_left_ends_the_run_and_names_the_cause(tmp_path: Path, kind: Kind) -> None:
    async def steps(fleet: Fleet) -> None:
        await lose(fleet, name_of(kind, 0))

    with pytest.raises(RuntimeError, match=r"-0 died 1 times within 3600 s \(cluster.max_restarts=0\); .*: killed$"):
        run(world(tmp_path, overrides=("cluster.max_restarts=0",)), steps)


def test_a_fault_of_ours_in_a_join_ends_the_run_instead_of_leaving_it_waiting(tmp_path: Path, caplog) -> None:
    async def steps(fleet: Fleet) -> None:
        async def broken(*_: Any) -> None:
            raise TypeError("ours")

        fleet.joining.introduce = broken
        await lose(fleet, "rollout-0")
        await asyncio.sleep(5.0)
        assert "an error in a change of the rollout workers" in caplog.text and "TypeError: ours" in caplog.text
        await lose(fleet, "rollout-1")
        await fleet.worker_pool.need()

    with pytest.raises(TypeError, match="ours"):
        run(world(tmp_path), steps)


def test_a_dead_worker_found_by_an_update_is_replaced_and_one_that_is_late_or_fails_is_named(
    tmp_path: Path,
) -> None:
    async def steps(fleet: Fleet) -> None:
        reports = await fleet.update_workers(bundle(2))
        assert [report.worker for report in reports] == ["rollout-1"]
        await settle(fleet)
        assert [behind(worker).version for worker in fleet.workers.healthy().values()] == [2, 2]

    _, reported = run(world(tmp_path, Fault("worker.update", 3)), steps)
    assert reported == [("rollout-0", "restart")]
    with pytest.raises(RuntimeError, match=r"^update_weights: rollout-0 failed: worker\.update failed"):
        run(world(tmp_path, Fault("worker.update", 3, "fail")), steps)
    with pytest.raises(UpdateFailed, match=r"^update_weights: rollout-0 failed: no answer within 30 s"):
        run(world(tmp_path, Fault("worker.update", 3, "hang")), steps)


def test_a_worker_that_could_not_copy_the_weights_is_asked_again_and_not_replaced(tmp_path: Path) -> None:
    async def steps(fleet: Fleet) -> None:
        reports = await fleet.update_workers(bundle(2))
        assert {report.worker for report in reports} == {"rollout-0", "rollout-1"}

    _, reported = run(world(tmp_path, Fault("worker.update", 3, "load nothing")), steps)
    assert reported == []


def test_a_suspect_is_given_nothing_until_it_has_answered(tmp_path: Path) -> None:
    async def steps(fleet: Fleet) -> None:
        member = fleet.workers.current("rollout-0")
        asked = asyncio.ensure_future(fleet.suspect_worker(member))
        await asyncio.sleep(0)
        assert list(fleet.workers.healthy()) == ["rollout-1"]
        assert await asked is False and list(fleet.workers.healthy()) == ["rollout-0", "rollout-1"]

    _, reported = run(world(tmp_path), steps)
    assert reported == []


@pytest.mark.parametrize("what", ["die", "hang", "fail"])
def test_a_suspect_that_does_not_answer_is_replaced_once_however_many_ask(tmp_path: Path, what: str) -> None:
    async def steps(fleet: Fleet) -> None:
        member = fleet.workers.current("rollout-0")
        assert all(await asyncio.gather(*(fleet.suspect_worker(member) for _ in range(3))))
        await settle(fleet)
        assert len(fleet.workers.healthy()) == 2

    faults = [Fault("worker.health", call, what) for call in (1, 2, 3)]
    _, reported = run(world(tmp_path, *faults), steps)
    assert reported == [("rollout-0", "restart")]


def test_an_environment_actor_is_replaced_once_and_knows_the_workers_that_joined_meanwhile(tmp_path: Path) -> None:
    async def steps(fleet: Fleet) -> None:
        dead = fleet.players.current("env-0")
        for _ in range(3):
            fleet.player_pool.on_death(dead, "killed")
        await asyncio.sleep(1.5)  # the successor is up and knows the workers
        await lose(fleet, "rollout-1")
        await settle(fleet)
        known = behind(fleet.players.healthy()["env-0"]).workers
        assert known["rollout-1"] is behind(fleet.workers.healthy()["rollout-1"])

    _, reported = run(world(tmp_path), steps)
    assert sorted(reported) == [("env-0", "restart"), ("rollout-1", "restart")]


def test_an_actor_out_of_restarts_ends_the_run_and_the_scorer_alone_stays_down(tmp_path: Path) -> None:
    async def scorer(fleet: Fleet) -> None:
        await fleet.replace_scorer("killed")
        await fleet.replace_scorer("killed again")
        assert fleet.scorer is None and fleet.up()["scorer"] is False
        assert fleet.take_restarts() == {"scorer": 1} and fleet.take_restarts() == {}

    async def service(fleet: Fleet) -> None:
        await fleet.replace_filter("killed")
        await fleet.replace_filter("killed again")

    one = ("cluster.max_restarts=1",)
    run(world(tmp_path, overrides=one), scorer)
    with pytest.raises(
        RuntimeError, match=r"filter died 2 times within 3600 s \(cluster.max_restarts=1\); last .*: killed again"
    ):
        run(world(tmp_path, overrides=one), service)


def test_the_counter_of_a_member_that_joins_begins_at_nought(tmp_path: Path) -> None:
    """Found by a reviewer: Prometheus sees no increase in a counter that begins at 1, so no alert reported a worker
    that was added and flapped."""

    async def steps(fleet: Fleet) -> None:
        assert fleet.take_restarts() == {}
        fleet.worker_pool.scale(Request(Kind.ROLLOUT, 3))
        await settle(fleet)
        assert fleet.take_restarts() == {"rollout-2": 0} and fleet.take_restarts() == {}
        await lose(fleet, "rollout-2")
        await settle(fleet)
        assert fleet.take_restarts() == {"rollout-2": 1} and fleet.take_restarts() == {}

    run(world(tmp_path), steps)


def test_the_late_are_named_and_their_calls_given_up() -> None:
    given_up: list[str] = []

    async def sleep(name: str, seconds: float) -> str:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            given_up.append(name)
            raise
        return name

    async def main() -> None:
        names = {"a": 1.0, "b": 99.0, "c": 99.0}
        with pytest.raises(TimeoutError, match=r"^asked: b, c did not answer within 5 s$"):
            await within({name: sleep(name, seconds) for name, seconds in names.items()}, 5.0, "asked")
        found = await outcomes({name: bounded(sleep(name, seconds), 5.0) for name, seconds in names.items()})
        assert found["a"] == "a" and all(str(found[late]) == "no answer within 5 s" for late in "bc")
        assert await within({"a": sleep("a", 1.0)}, 5.0, "asked") == {"a": "a"}
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(within({"d": sleep("d", 99.0)}, 50.0, "asked"), 1.0)
        assert given_up[-1] == "d", "a wait that is itself given up leaves no call behind"

    clock.run(main())
    assert sorted(given_up) == ["b", "b", "c", "c", "d"]
