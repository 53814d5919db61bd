"""A run whose rollout workers and environment actors come and go at any moment: every ticket is accounted for, none
fails for it, none is trained on twice, and the staleness bound holds."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from squelch.cluster.control.scaling import By, Kind, Request
from squelch.cluster.fleet.supervision import Watchdog
from squelch.cluster.loop.coordinator import Coordinator
from squelch.cluster.runs.ending import EndCause, Ending
from tests.fakes import clock
from tests.fakes.actors import FakeActors, FakeArchive, Fault, World
from tests.fakes.run import Outcome, check, drive
from tests.fakes.run import settings as configured

QUICK = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
STOP = Ending(EndCause.SIGNAL, "SIGTERM")
MIXED = {"rewards": lambda t, i: i % 2}
CHANGES = st.lists(
    st.tuples(st.integers(1, 90), st.sampled_from(Kind), st.integers(1, 4), st.booleans()), min_size=1, max_size=5
)
"""(number of the call before which it comes, kind, wanted number, at once)"""
NOTICES = st.tuples(
    st.integers(1, 60),
    st.sampled_from(("rollout-0", "rollout-1", "env-0", "learner")),
    st.sampled_from((0.0, 15.0, math.inf)),
)
"""(number of the call before which it comes, member, seconds until its node is taken away)"""
DEATHS = st.lists(st.tuples(st.sampled_from(("player.play", "worker.update")), st.integers(3, 12)), max_size=2)


def paced(seed: int) -> World.pace:
    """Calls take from no time at all to ten seconds, by a seed: this sets the order of events."""
    chance = random.Random(seed)
    return lambda kind: chance.choice([0.0, 0.1, 1.0, chance.uniform(0, 10)])


def changing(world: World, changes: list[tuple[int, Kind, int, bool]]) -> Callable[[Coordinator], None]:
    """Prepares a run in which the changes are asked for, each before its call."""

    def prepare(coordinator: Coordinator) -> None:
        pools = coordinator.fleet.pools

        def on_call(_: str, number: int) -> None:
            for at, kind, count, at_once in changes:
                if at == number:
                    pools[kind].scale(Request(kind, count, at_once))

        world.on_call = on_call

    return prepare


def made(world: World, changes: list[tuple[int, Kind, int, bool]]) -> tuple[Outcome, FakeArchive]:
    archive = FakeArchive()
    outcome = drive(world, archive, changing(world, changes))
    check(outcome, world, archive)
    return outcome, archive


@QUICK
@given(seed=st.integers(0, 10**9), staleness=st.integers(0, 3), changes=CHANGES, deaths=DEATHS)
def test_a_change_at_any_moment_costs_no_ticket_and_counts_as_no_attempt(
    tmp_path_factory, seed: int, staleness: int, changes: list[tuple[int, Kind, int, bool]], deaths
) -> None:
    words = (f"loop.max_staleness={staleness}", "cluster.max_restarts=9", f"loop.max_attempts={9 if deaths else 1}")
    faults = tuple(Fault(kind, call) for kind, call in deaths)
    world = World(configured(tmp_path_factory.mktemp("run"), *words), faults, paced(seed), **MIXED)
    outcome, _ = made(world, changes)
    assert outcome.ledger.counts()["trained"] == 12
    assert deaths or not outcome.fleet.restarts.counts


@QUICK
@given(
    seed=st.integers(0, 10**9),
    staleness=st.integers(0, 3),
    changes=CHANGES,
    at=st.integers(1, 70),
    killed=st.booleans(),
)
def test_a_run_that_is_scaled_and_stopped_or_killed_is_completed_when_resumed(
    tmp_path_factory, seed: int, staleness: int, changes: list[tuple[int, Kind, int, bool]], at: int, killed: bool
) -> None:
    words = (f"loop.max_staleness={staleness}", "loop.checkpoint_every=1")
    world = World(configured(tmp_path_factory.mktemp("run"), *words), (), paced(seed))
    archive = FakeArchive()

    def prepare(coordinator: Coordinator) -> None:
        changing(world, changes)(coordinator)
        change = world.on_call

        def on_call(kind: str, number: int) -> None:
            change(kind, number)
            if number == at:
                clock.crash() if killed else coordinator.stop(STOP)

        world.on_call = on_call

    with suppress(clock.Crashed):
        check(drive(world, archive, prepare), world, archive)
    world.on_call = None
    outcome = drive(world, archive, resume=True)
    check(outcome, world, archive)
    assert outcome.steps.admission.clock == 4
    assert outcome.fleet.wanted() == {Kind.ROLLOUT: 2, Kind.ENVIRONMENT: 2}, "as the recipe says"


@QUICK
@example(seed=9578365, staleness=2, notices=[(1, "rollout-0", 15.0), (1, "learner", 0.0)])
@given(
    seed=st.integers(0, 10**9),
    staleness=st.integers(0, 3),
    notices=st.lists(NOTICES, min_size=1, max_size=3),
)
def test_nodes_that_are_taken_away_cost_no_ticket_if_they_are_announced(
    tmp_path_factory, seed: int, staleness: int, notices: list[tuple[int, str, float]]
) -> None:
    words = (f"loop.max_staleness={staleness}", "loop.max_attempts=1")
    world, archive = World(configured(tmp_path_factory.mktemp("run"), *words), (), paced(seed), **MIXED), FakeArchive()

    def on_call(_: str, number: int) -> None:
        world.draining |= {name: left for at, name, left in notices if at == number}

    world.on_call = on_call
    outcome = drive(world, archive, scaled=True)
    check(outcome, world, archive)
    assert outcome.ledger.counts()["trained"] == 12 and not outcome.fleet.restarts.counts


@pytest.mark.parametrize("staleness", [0, 2])
@pytest.mark.parametrize("every", [1, 3, 9])
def test_learner_ranks_move_with_a_checkpoint_before_their_node_is_taken_away(
    tmp_path: Path, staleness: int, every: int
) -> None:
    words = (f"loop.max_staleness={staleness}", f"loop.checkpoint_every={every}", "cluster.max_restarts=0")
    world, archive = World(configured(tmp_path, *words), **MIXED), FakeArchive()
    order: list[str] = []

    def on_call(kind: str, _: int) -> None:
        order.append(kind)
        if kind == "learner.train" and world.calls[kind] == 2:
            world.draining["learner"] = 600.0

    world.on_call = on_call
    world.pace = lambda kind: 5.0 if kind == "learner.train" else 1.0
    outcome = drive(world, archive, scaled=True)
    check(outcome, world, archive)
    assert world.calls["learner.start"] == 2 and outcome.ledger.counts()["trained"] == 12
    moved = order.index("learner.load")
    assert order[:moved].count("learner.train") == 2 and "learner.save" in order[:moved], "at the end of step 2"
    (found,) = [f for (_, name), f in zip(archive.events, archive.facts, strict=True) if name == "recovered"]
    assert found["same"] and found["steps"] == 0 and found["cause"] == "its node will be taken away"
    assert ("learner", "preempted") in archive.events and not outcome.fleet.restarts.counts, "and that is no restart"


def test_a_learner_that_goes_on_with_fewer_ranks_moves_with_these(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("learner.ranks=4", "loop.steps=6", "learner.regroup_timeout_s=30", "validation.every=0")
    world, archive = World(configured(tmp_path, *words), (Fault("learner.train", 2),), **MIXED), FakeArchive()
    world.room = lambda made: 3 if made else 4
    times: dict[str, float] = {}
    watched = list[int]()
    monkeypatch.setattr(Watchdog, "see", lambda self, name, watch, now: watched.append(len(watch.names)))

    def on_call(kind: str, _: int) -> None:
        if kind.startswith("learner."):
            times.setdefault(f"{kind} {world.calls[kind]}", asyncio.get_running_loop().time())
        if kind == "learner.train" and world.calls[kind] == 5:
            watched.clear()
            world.draining["learner"] = 600.0

    world.on_call = on_call
    world.pace = lambda kind: 20.0 if kind == "learner.train" else 1.0
    check(drive(world, archive, scaled=True), world, archive)
    lost, moved = [f for (_, name), f in zip(archive.events, archive.facts, strict=True) if name == "recovered"]
    assert lost["ranks"] == moved["ranks"] == 3 and moved["cause"] == "its node will be taken away"
    assert times["learner.start 3"] - times["learner.save 1"] < 30, "it does not wait for the fourth"
    assert 3 in watched and 4 not in watched, "and no rank is named that is not there"


def test_a_learner_that_has_no_other_room_stays_with_one_checkpoint_until_its_node_is_gone(tmp_path: Path) -> None:
    words = ("loop.checkpoint_every=9", "loop.steps=6", "validation.every=0")
    world, archive = World(configured(tmp_path, *words), **MIXED), FakeArchive()
    coordinators: list[Coordinator] = []

    def on_call(kind: str, _: int) -> None:
        if kind == "learner.train" and world.calls[kind] == 1:
            world.draining["learner"] = 600.0
        if kind == "learner.train" and world.calls[kind] == 4:
            coordinators[0].fleet.learner.kill()

    world.on_call, world.room = on_call, lambda made: 0 if world.calls["learner.train"] < 4 else 1
    world.pace = lambda kind: 5.0 if kind == "learner.train" else 1.0
    outcome = drive(world, archive, coordinators.append, scaled=True)
    check(outcome, world, archive)
    assert world.calls["learner.save"] == 2, "after the notice, and at the end"
    (found,) = [f for (_, name), f in zip(archive.events, archive.facts, strict=True) if name == "recovered"]
    assert found["steps"] == 2 and outcome.fleet.restarts.counts == {"learner": 1}


def test_a_request_is_checked_answered_and_granted(tmp_path: Path) -> None:
    words = ("rollout.max_count=3", "loop.steps=8", "loop.max_staleness=1")
    world, archive = World(configured(tmp_path, *words), **MIXED), FakeArchive()
    world.lacks = lambda counts: "the cluster has 2 CPUs and the run needs 9" if counts[Kind.ENVIRONMENT] > 4 else None
    world.requests = [
        Request(Kind.ROLLOUT, 0),
        Request(Kind.ROLLOUT, 4),
        Request(Kind.ENVIRONMENT, 0),
        Request(Kind.ENVIRONMENT, 5),
        Request(Kind.ROLLOUT, 3),
        Request(Kind.ENVIRONMENT, 1),
    ]
    outcome = drive(world, archive, scaled=True)
    check(outcome, world, archive)
    accepted = [answer.accepted for answer in world.answers]
    assert accepted == [False, False, False, False, True, True]
    texts = [answer.text for answer in world.answers]
    assert texts[0] == "0 rollout workers are fewer than rollout.min_count=1"
    assert texts[1] == "4 rollout workers are more than rollout.max_count=3, which --resume can change"
    assert texts[2].startswith("0 environment actors are fewer than 1")
    assert texts[3] == "the cluster has 2 CPUs and the run needs 9"
    assert texts[4] == "rollout workers: 2 -> 3; each new one gets groups once it has the current weights"
    assert texts[5] == "environment actors: 2 -> 1; each leaves when its groups end"
    assert any(line.startswith("rollout workers: 2 -> 3") for line in outcome.said)
    last = archive.recorded[8]
    up = {key.removeprefix("up/") for key, value in last.items() if key.startswith("up/") and value}
    assert {name for name in up if "-" in name} == {"rollout-0", "rollout-1", "rollout-2", "env-0"}
    assert last["wanted/rollout"] == 3 and last["wanted/environment"] == 1 and "up/env-1" not in last
    assert sum(row.get("scalings/rollout/up/command", 0) for row in archive.recorded.values()) == 1


def test_an_autoscaler_is_asked_no_longer_than_members_are_wanted_and_the_run_lasts(tmp_path: Path) -> None:
    asks: list[bool] = []

    def watch(coordinator: Coordinator) -> None:
        world.on_call = lambda *_: asks.append(coordinator.fleet.actors.asks)

    back = [Request(Kind.ROLLOUT, 3), Request(Kind.ROLLOUT, 2)]
    world = World(configured(tmp_path / "back", "loop.steps=8"), requests=back, **MIXED)
    drive(world, FakeArchive(), watch, scaled=True)
    assert True in asks and not asks[-1], "the third worker is not wanted any more"
    asks.clear()
    never = Fault("worker.ready", 3, "hang")
    config = configured(tmp_path / "never", "rollout.start_timeout_s=1e6")
    world = World(config, (never,), requests=[Request(Kind.ROLLOUT, 3)], **MIXED)
    outcome = drive(world, FakeArchive(), watch, scaled=True)
    assert asks[-1] and not outcome.actors.asks, "the third worker has not come when the run ends"


def test_a_control_endpoint_that_dies_leaves_the_run_alone(tmp_path: Path) -> None:
    faults = tuple(Fault("endpoint.take", call) for call in range(1, 4))
    world, archive = World(configured(tmp_path), faults, **MIXED), FakeArchive()
    world.requests = [Request(Kind.ROLLOUT, 3)]
    check(drive(world, archive, scaled=True), world, archive)


def test_a_control_endpoint_that_freezes_is_replaced_and_the_next_one_takes_requests(tmp_path: Path) -> None:
    faults = (Fault("endpoint.take", 1, "hang"),)
    world, archive = World(configured(tmp_path, "loop.steps=80"), faults, **MIXED), FakeArchive()
    world.requests = [Request(Kind.ROLLOUT, 3)]

    def ask_again(_: Coordinator) -> None:
        again = [Request(Kind.ROLLOUT, 3)]
        asyncio.get_running_loop().call_later(90.0, lambda: setattr(world, "requests", again))

    outcome = drive(world, archive, ask_again, scaled=True)
    check(outcome, world, archive)
    assert [archive.events.count(("control-endpoint", what)) for what in ("late", "lost", "restart")] == [1, 1, 1]
    assert outcome.actors.made["endpoint"] == 2 and len(world.answers) == 1


def test_an_answer_that_does_not_arrive_leaves_the_other_requests_of_its_batch_alone(tmp_path: Path) -> None:
    world, archive = World(configured(tmp_path), (Fault("endpoint.answer", 1, "fail"),), **MIXED), FakeArchive()
    world.requests = [Request(Kind.ROLLOUT, 3), Request(Kind.ENVIRONMENT, 3), Request(Kind.ENVIRONMENT, 1)]
    outcome = drive(world, archive, scaled=True)
    check(outcome, world, archive)
    assert [answer.text.partition(";")[0] for answer in world.answers] == [
        "environment actors: 2 -> 3",
        "environment actors: 3 -> 1",
    ]
    assert outcome.fleet.wanted() == {Kind.ROLLOUT: 3, Kind.ENVIRONMENT: 1}


@pytest.mark.parametrize("question", ["lacking", "leaving"])
def test_an_unexpected_error_about_requests_or_notices_ends_the_run_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    async def bug(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(FakeActors, question, bug)
    world = World(configured(tmp_path), requests=[Request(Kind.ROLLOUT, 3)], **MIXED)
    with pytest.raises(KeyError, match="a bug"):
        drive(world, FakeArchive(), scaled=True)
    assert world.calls["learner.train"] <= 1, "long before the last step"


def queued(world: World, seconds: float) -> None:
    """Makes play take as long as `seconds` of work for each ticket of a step, divided among the healthy workers."""
    fleets = []

    def pace(kind: str) -> float:
        if kind != "player.play" or not fleets:
            return 1.0
        return seconds / max(1, len(fleets[-1].workers.healthy()))

    world.pace = pace
    world.prepare = lambda coordinator: fleets.append(coordinator.fleet)


def test_auto_adds_workers_while_the_learner_waits_says_why_and_a_resumed_run_goes_on_with_them(tmp_path: Path) -> None:
    words = ("rollout.count=auto", "rollout.max_count=4", "loop.steps=40", "validation.every=0", "scorer.enabled=false")
    world, archive = World(configured(tmp_path, *words), **MIXED), FakeArchive()
    queued(world, 12.0)
    outcome = drive(world, archive, world.prepare)
    check(outcome, world, archive)
    wanted = outcome.fleet.worker_pool.wanted
    assert archive.recorded[1]["wanted/rollout"] == 1 and wanted == 4
    scalings = [facts for (_, name), facts in zip(archive.events, archive.facts, strict=True) if name == "scale"]
    assert [(facts["before"], facts["after"]) for facts in scalings] == [(1, 2), (2, 3), (3, 4)]
    assert all(facts["by"] == By.AUTO and "the learner waited" in facts["reason"] for facts in scalings)
    assert all(0 <= row["scaling/wait_share"] <= 1 for step, row in archive.recorded.items() if step > 1)
    world.config = configured(tmp_path, *words, "loop.steps=44")
    resumed = drive(world, archive, world.prepare, resume=True, scaled=True)
    check(resumed, world, archive)
    assert resumed.fleet.worker_pool.wanted == 4
    assert any("as at the checkpoint" in line for line in resumed.said)


def test_what_auto_wants_and_the_cluster_lacks_is_not_asked_for_again_soon(tmp_path: Path) -> None:
    words = ("rollout.count=auto", "rollout.max_count=4", "loop.steps=30", "validation.every=0")
    world, asked = World(configured(tmp_path, *words), **MIXED), []
    world.lacks = lambda counts: asked.append(counts[Kind.ROLLOUT]) or "the cluster has 2 CPUs"
    queued(world, 12.0)
    archive = FakeArchive()
    check(drive(world, archive, world.prepare), world, archive)
    assert asked == [2]


@pytest.mark.parametrize("count", [0, 9])
def test_the_bounds_hold_for_a_checkpoint_from_a_larger_run_too(tmp_path: Path, count: int) -> None:
    config = configured(tmp_path, "rollout.count=auto", "rollout.max_count=4")
    world = World(config, **MIXED)
    coordinators: list[Coordinator] = []
    drive(world, FakeArchive(), coordinators.append)
    scaling = type(coordinators[0].scaling)(config, coordinators[0].fleet, print)
    scaling.restore({"rollout_workers": count}, ())
    assert scaling._resumed == min(count, 4)
