"""Learner ranks that die, hang or fail, on fakes: the run goes on, with the same weights where they can be made again
to the bit, and otherwise without a group, a task or a version of the lost ones.

`tests.fakes.actors` asserts at every call that no worker gets a lower version, that a version stands for one set of
weights, and that no group is trained on that lost weights sampled."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from squelch.cluster.control.actor_errors import Failed
from squelch.cluster.loop.coordinator import Coordinator
from squelch.cluster.runs.ending import EndCause, Ending
from tests.fakes import clock
from tests.fakes.actors import NEVER_S, FakeActors, FakeArchive, Fault, World
from tests.fakes.run import Outcome, check, drive
from tests.fakes.run import settings as configured
from tests.fakes.transport import behind

QUICK = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
STOP = Ending(EndCause.SIGNAL, "SIGTERM")
CALLS = ("learner.train", "learner.publish", "learner.save")
MIXED = {"rewards": lambda ticket, index: index % 2}
"""Every group has variance, so that each of the four steps trains on its three groups."""


def made(world: World, prepare: Callable[[Coordinator], None] = lambda _: None) -> tuple[Outcome, FakeArchive]:
    """A whole run, checked."""
    archive = FakeArchive()
    outcome = drive(world, archive, prepare)
    check(outcome, world, archive)
    return outcome, archive


def recoveries(archive: FakeArchive) -> list[dict[str, Any]]:
    """What the run_log says of each recovery."""
    return [facts for event, facts in zip(archive.events, archive.facts, strict=True) if event[1] == "recovered"]


def paced(seed: int) -> Callable[[str], float]:
    chance = random.Random(seed)
    return lambda kind: chance.choice([0.0, 0.1, 1.0, chance.uniform(0, 10)])


def test_a_recovery_after_a_stop_shows_its_parts_and_since_when(tmp_path: Path) -> None:
    def stopped(coordinator: Coordinator) -> None:
        train = coordinator.learning.train

        async def stop_and_train(*arguments: Any) -> Any:
            if arguments[0] == 3:
                coordinator.stop(STOP)
            return await train(*arguments)

        coordinator.learning.train = stop_and_train

    world = World(configured(tmp_path), [Fault("learner.train", 3, "die")], pace=lambda kind: 20.0, **MIXED)
    outcome, _ = made(world, stopped)
    rebuilt = [work for work in outcome.shown if work.what.startswith("rebuilding the learner: ")]
    parts = ["waiting for the archive", "waiting for room", "starting 2 ranks", "loading the checkpoint"]
    assert [work.what.partition(": ")[2] for work in rebuilt] == parts, "the checkpoint is that of step 2"
    assert len({work.since for work in rebuilt}) == 1
    after = outcome.shown[outcome.shown.index(rebuilt[-1]) + 1]
    assert after.what == "step 3: training on 3 groups" and after.since <= rebuilt[0].since


@pytest.mark.parametrize("staleness", [0, 2])
@pytest.mark.parametrize(("what", "after"), [("die", False), ("die", True), ("hang", False), ("stall", False)])
@pytest.mark.parametrize("kind", CALLS)
def test_a_loss_at_every_call_costs_nothing_but_time_where_the_weights_can_be_made_again(
    tmp_path: Path, kind: str, what: str, after: bool, staleness: int
) -> None:
    words = (f"loop.max_staleness={staleness}",)
    whole = World(configured(tmp_path / "whole", *words), **MIXED)
    reference, _ = made(whole)
    for call in range(1, whole.calls[kind] + 1):
        world = World(configured(tmp_path / str(call), *words), (Fault(kind, call, what, after),), **MIXED)
        outcome, archive = made(world)
        assert outcome.fleet.restarts.counts == {"learner": 1}, f"call {call}"
        assert [found["same"] for found in recoveries(archive)] == [True]
        assert behind(outcome.fleet.learner).weights == behind(reference.fleet.learner).weights
        assert world.versions == whole.versions, "and the workers get the same versions"
        assert outcome.ledger.counts() == reference.ledger.counts()


@pytest.mark.parametrize("staleness", [0, 2])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("kind", CALLS)
def test_weights_that_differ_are_published_under_a_higher_version_and_what_lost_weights_sampled_is_retried(
    tmp_path: Path, kind: str, after: bool, staleness: int
) -> None:
    words = (f"loop.max_staleness={staleness}", "loop.checkpoint_every=3")
    whole = World(configured(tmp_path / "whole", *words), drifts=True, **MIXED)
    reference, _ = made(whole)
    for call in range(1, whole.calls[kind] + 1):
        faults = (Fault(kind, call, "die", after),)
        world = World(configured(tmp_path / str(call), *words), faults, drifts=True, **MIXED)
        outcome, archive = made(world)
        assert outcome.ledger.counts() == reference.ledger.counts(), f"call {call}"
        (found,) = recoveries(archive)
        unpublished = kind == "learner.publish"  # the next version, which no worker has, holds the step's update too
        assert outcome.steps.admission.version == 4 + (not found["same"] and not unpublished)


def test_ranks_leave_their_weights_to_the_checkpoint_that_they_load_if_there_is_one(tmp_path: Path) -> None:
    faults = (Fault("learner.train", 1), Fault("learner.train", 4))
    world = World(configured(tmp_path), faults, **MIXED)
    archive = FakeArchive()
    check(drive(world, archive), world, archive)
    assert world.resumed == [False, False, True], "the first checkpoint follows the second step"
    world.faults = ()
    check(drive(world, archive, resume=True), world, archive)
    assert world.resumed[3:] == [True]


def test_fewer_ranks_go_on_where_the_cluster_has_no_room_for_all(tmp_path: Path) -> None:
    words = ("learner.ranks=4", "loop.checkpoint_every=3", "learner.regroup_timeout_s=30")
    fewer = {"room": lambda made: 4 if made < 1 else 3}
    world = World(configured(tmp_path, *words), (Fault("learner.train", 3),), **MIXED, **fewer)
    outcome, archive = made(world)
    assert recoveries(archive)[0].items() >= {"ranks": 3, "steps": 2, "same": False}.items()
    assert behind(outcome.fleet.learner).weights == ["1@3", "2@3", "3@3", "4@3"]
    assert outcome.steps.admission.version == 5 and max(world.versions) == 5
    assert "3 groups are retried, from version 3" in outcome.said
    assert outcome.ledger.counts()["trained"] == 12 and world.calls["player.play"] > 12


def test_a_replacement_that_comes_in_time_is_waited_for(tmp_path: Path) -> None:
    asked: list[int] = []

    def room(made: int) -> int:
        asked.append(made)
        return 1 if len(asked) < 20 else 2

    world = World(configured(tmp_path, "learner.ranks=2"), (Fault("learner.train", 3),), room=room, **MIXED)
    outcome, archive = made(world)
    assert recoveries(archive)[0]["ranks"] == 2 and recoveries(archive)[0]["same"]
    assert behind(outcome.fleet.learner).weights == [f"{step}@2" for step in (1, 2, 3, 4)]


def test_a_cluster_without_room_for_one_rank_ends_the_run_and_says_what_was_lost(tmp_path: Path) -> None:
    world = World(configured(tmp_path), (Fault("learner.train", 2),), room=lambda made: 0, **MIXED)
    lost = r"the learner is lost \(learner rank 0 died in train_step: learner is gone\)"
    with pytest.raises(RuntimeError, match=rf"{lost}.*no room for one rank of 0.5 CPU"):
        drive(world, FakeArchive())


@pytest.mark.parametrize("answers", [True, False])
def test_a_cluster_that_does_not_say_what_is_free_is_asked_again_until_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """Silence and errors spend no restart."""
    asked, times = list[float](), list[float]()

    async def ranks_that_fit(_: FakeActors) -> int:
        asked.append(asyncio.get_running_loop().time())
        if len(asked) == 1:
            raise Failed("the cluster is busy", RuntimeError("busy"))
        if len(asked) == 2 or not answers:
            await asyncio.sleep(NEVER_S)
        return 2

    monkeypatch.setattr(FakeActors, "ranks_that_fit", ranks_that_fit)
    world = World(configured(tmp_path, "cluster.max_restarts=1"), (Fault("learner.train", 2),), **MIXED)
    world.on_call = lambda kind, _: times.append(asyncio.get_running_loop().time())
    if answers:
        outcome, _ = made(world)
        assert outcome.fleet.restarts.counts == {"learner": 1} and len(asked) == 3
    else:
        with pytest.raises(RuntimeError, match=r"the cluster does not say whether it has room for one rank"):
            drive(world, FakeArchive())
    assert asked[-1] - asked[0] < 100 and times[-1] < 1000


@pytest.mark.parametrize("drifts", [False, True])
@pytest.mark.parametrize(
    "second",
    [
        Fault("learner.start", 2),
        Fault("learner.start", 2, "hang"),
        Fault("learner.load", 1),
        Fault("learner.load", 1, "hang"),
        Fault("learner.train", 4),
        Fault("learner.train", 4, "hang"),
        Fault("learner.train", 5, "die", after=True),
        Fault("learner.publish", 4),
        Fault("learner.publish", 5),
    ],
)
def test_a_second_loss_during_the_recovery_begins_it_again(tmp_path: Path, second: Fault, drifts: bool) -> None:
    faults = (Fault("learner.train", 4, "die") if second.call == 5 else Fault("learner.train", 3), second)
    outcome, archive = made(World(configured(tmp_path), faults, drifts=drifts, **MIXED))
    assert outcome.ledger.counts()["trained"] == 12 and len(recoveries(archive)) in (1, 2)
    assert outcome.fleet.restarts.counts == {"learner": 2}


@pytest.mark.parametrize("drifts", [False, True])
def test_a_rank_0_that_dies_while_workers_load_its_weights_takes_no_worker_with_it(
    tmp_path: Path, drifts: bool
) -> None:
    updates = World(configured(tmp_path / "whole"), **MIXED)
    made(updates)
    for number in range(1, updates.calls["worker.update"] + 1):
        world = World(configured(tmp_path / str(number)), drifts=drifts, pace=paced(number), **MIXED)
        outcome, _ = made(world, lambda coordinator, w=world, n=number: kill_at(w, coordinator, "worker.update", n))
        assert set(outcome.fleet.restarts.counts) == {"learner"} and outcome.ledger.counts()["trained"] == 12


def kill_at(world: World, coordinator: Coordinator, kind: str, number: int) -> None:
    """Ends the learner when this call of another actor begins."""

    def kill(called: str, _: int) -> None:
        if called == kind and world.calls[kind] == number:
            coordinator.fleet.learner.kill()

    world.on_call = kill


@pytest.mark.parametrize("staleness", [0, 2])
@pytest.mark.parametrize("dies", [False, True])
def test_rows_that_are_lost_with_a_host_are_retried(tmp_path: Path, staleness: int, dies: bool) -> None:
    """With a rank on that host, and without."""
    faults = (Fault("learner.train", 2),) if dies else ()
    world = World(configured(tmp_path, f"loop.max_staleness={staleness}"), faults, **MIXED)

    def lose(kind: str, _: int) -> None:
        if kind == "learner.train" and world.calls[kind] == 2:
            world.lost_rows |= {"000002-001", "000003-000"}

    world.on_call = lose
    outcome, _ = made(world)
    assert outcome.ledger.counts()["trained"] == 12 and set(outcome.fleet.restarts.counts) == {"learner"}
    assert outcome.steps.admission.version == 4 and not world.lost_rows


ALL_ROWS = {f"{step:06d}-{k:03d}" for step in range(1, 5) for k in range(3)}


@pytest.mark.parametrize("staleness", [0, 2])
@pytest.mark.parametrize("call", ["filter.close", "learner.train", "learner.publish", "worker.update", "learner.save"])
def test_rows_lost_with_a_host_at_any_moment_of_a_step_cost_no_step_and_no_rank(
    tmp_path: Path, call: str, staleness: int
) -> None:
    """Every row that the object store holds is lost, kept or dropped, at each such call in turn."""
    words = (f"loop.max_staleness={staleness}", "filter.rho=0.5")
    whole = World(configured(tmp_path / "whole", *words))
    reference, _ = made(whole)
    for number in range(1, whole.calls[call] + 1):
        world = World(configured(tmp_path / str(number), *words))

        def lose(kind: str, _: int, world: World = world, number: int = number) -> None:
            if kind == call and world.calls[kind] == number:
                world.lost_rows |= ALL_ROWS

        world.on_call = lose
        outcome, _ = made(world)
        assert outcome.fleet.restarts.counts == {} or call == "learner.train", (
            "only ranks that fetch lost rows are lost"
        )
        assert outcome.ledger.counts() == reference.ledger.counts(), f"{call} {number}"


@pytest.mark.parametrize("staleness", [0, 2])
@pytest.mark.parametrize("call", ["learner.publish", "learner.save", "player.evaluate", "player.play"])
def test_rows_and_a_rank_that_are_lost_together_after_a_step_was_trained_on_cost_one_restart(
    tmp_path: Path, call: str, staleness: int
) -> None:
    """The step is trained on again, from rows that the driver holds or has archived, and never retried."""
    words = (f"loop.max_staleness={staleness}", "loop.checkpoint_every=3")
    whole = World(configured(tmp_path / "whole", *words), **MIXED)
    reference, _ = made(whole)
    for number in range(2, whole.calls[call] + 1):
        world = World(configured(tmp_path / str(number), *words), **MIXED)

        def prepare(coordinator: Coordinator, world: World = world, number: int = number) -> None:
            def lose(kind: str, _: int) -> None:
                if kind == call and world.calls[kind] == number:
                    world.lost_rows |= ALL_ROWS
                    coordinator.fleet.learner.kill()

            world.on_call = lose

        outcome, archive = made(world, prepare)
        assert set(outcome.fleet.restarts.counts) == {"learner"} and sum(outcome.fleet.restarts.counts.values()) == 1, (
            number
        )
        assert (
            recoveries(archive)[0]["same"]
            and behind(outcome.fleet.learner).weights == behind(reference.fleet.learner).weights
        )
        assert outcome.ledger.counts() == reference.ledger.counts(), f"{call} {number}"


def test_rows_that_are_lost_whenever_a_step_is_played_end_the_run_by_name_and_a_resume_goes_on(tmp_path: Path) -> None:
    world, archive = World(configured(tmp_path, "loop.checkpoint_every=1"), **MIXED), FakeArchive()

    def lose(kind: str, _: int) -> None:
        if kind == "filter.close":
            world.lost_rows |= {"000003-001"}

    world.on_call = lose
    with pytest.raises(Failed, match=r"rows of .*000003-001.* are lost"):
        drive(world, archive)
    world.on_call = None
    world.lost_rows.clear()
    outcome = drive(world, archive, resume=True)
    check(outcome, world, archive)
    assert outcome.ledger.counts()["trained"] == 12


def test_a_rank_that_dies_while_groups_are_played_is_replaced_at_once_and_playing_goes_on(tmp_path: Path) -> None:
    world, order = World(configured(tmp_path, "scorer.probe.every=0"), **MIXED), []

    def prepare(coordinator: Coordinator) -> None:
        kill_at(world, coordinator, "player.play", 5)
        kill = world.on_call
        world.on_call = lambda kind, number: (order.append(kind), kill(kind, number))

    outcome, _ = made(world, prepare)
    again = order.index("learner.start")
    assert "filter.close" in order[again:] and order[:again].count("filter.close") == 1, "before step 2 was decided"
    assert world.calls["player.play"] == 12 and outcome.fleet.restarts.counts == {"learner": 1}


def test_a_hung_rank_is_noticed_long_before_the_bound_of_its_call(tmp_path: Path) -> None:
    times: dict[str, float] = {}
    world = World(configured(tmp_path), (Fault("learner.train", 1, "hang"),), **MIXED)
    world.on_call = lambda kind, _: times.setdefault(f"{kind} {world.calls[kind]}", asyncio.get_running_loop().time())
    outcome, archive = made(world)
    assert 60 <= times["learner.start 2"] - times["learner.train 1"] < 75
    assert "learner rank 0, learner rank 1 did not answer" in recoveries(archive)[0]["cause"]
    assert outcome.fleet.restarts.counts == {"learner": 1}


def test_a_rank_that_froze_between_two_calls_is_noticed_before_a_checkpoint_is_written(tmp_path: Path) -> None:
    """No step after the freeze trains, so that saving is the next call; it alone could only run into its bound."""
    times: dict[str, float] = {}
    world = World(configured(tmp_path, "loop.steps=3", "loop.checkpoint_every=3"), rewards=lambda ticket, _: 0.0)

    def prepare(coordinator: Coordinator) -> None:
        first = behind(coordinator.fleet.learner)

        def watch(kind: str, _: int) -> None:
            times[f"{kind} {world.calls[kind]}"] = asyncio.get_running_loop().time()
            first.frozen = first.frozen or kind == "player.play"

        world.on_call = watch

    outcome, archive = made(world, prepare)
    assert 60 <= times["learner.start 2"] - max(at for call, at in times.items() if call.startswith("filter")) < 80
    assert "write: learner rank 0, learner rank 1 did not answer" in recoveries(archive)[0]["cause"]
    assert outcome.fleet.restarts.counts == {"learner": 1} and world.calls["learner.save"] == 1


@pytest.mark.parametrize(("mark_s", "seconds"), [(1e9, 500.0), (25.0, 590.0), (59.0, 590.0)])
def test_a_slow_step_is_no_hung_one(tmp_path: Path, mark_s: float, seconds: float) -> None:
    """The first case is a first step that compiles: no mark comes until it ends."""
    words = ("loop.steps=1",) if mark_s > seconds else ()
    pace = {"learner.train": seconds}
    world = World(configured(tmp_path, *words), pace=lambda kind: pace.get(kind, 1.0), mark_s=mark_s, **MIXED)
    outcome, _ = made(world)
    assert outcome.fleet.restarts.counts == {}


def test_a_learner_that_dies_again_and_again_ends_the_run_by_name_and_a_resume_goes_on(tmp_path: Path) -> None:
    words = ("loop.checkpoint_every=1",)
    faults = tuple(Fault("learner.train", call) for call in range(3, 9))
    world, archive = World(configured(tmp_path, *words), faults, **MIXED), FakeArchive()
    with pytest.raises(
        RuntimeError,
        match=r"learner died 4 times within 3600 s .*max_restarts=3.*: learner rank 0 died in \w+: learner is gone",
    ):
        drive(world, archive)
    world.faults = ()
    outcome = drive(world, archive, resume=True)
    check(outcome, world, archive)
    assert outcome.ledger.counts()["trained"] == 12


def test_deaths_that_lie_far_apart_do_not_add_up(tmp_path: Path) -> None:
    words = ("cluster.restart_window_s=1000", "cluster.max_restarts=1", "loop.checkpoint_every=1")
    faults = tuple(Fault("learner.train", call) for call in (1, 3, 5, 7))
    pace = {"learner.train": 590.0}
    world = World(configured(tmp_path, *words), faults, lambda kind: pace.get(kind, 1.0), **MIXED)
    outcome, _ = made(world)
    assert outcome.fleet.restarts.counts == {"learner": 4}


def test_an_error_that_a_new_group_raises_too_ends_the_run_after_one_recovery(tmp_path: Path) -> None:
    words = ("loop.checkpoint_every=1",)
    once = World(configured(tmp_path / "once", *words), (Fault("learner.save", 2, "fail"),), **MIXED)
    outcome, _ = made(once)
    assert outcome.fleet.restarts.counts == {"learner": 1}
    twice = (Fault("learner.save", 2, "fail"), Fault("learner.save", 3, "fail"))
    world = World(configured(tmp_path / "twice", *words), twice, **MIXED)
    with pytest.raises(RuntimeError, match=r"^learner rank 0 failed in write: learner\.save failed$"):
        drive(world, FakeArchive())
    assert world.calls["learner.start"] == 2


def test_a_gpu_that_is_full_again_with_other_figures_ends_the_run_after_one_recovery(tmp_path: Path) -> None:
    full = (Fault("learner.save", 2, "fill"), Fault("learner.save", 3, "fill"))
    world = World(configured(tmp_path, "loop.checkpoint_every=1"), full, **MIXED)
    with pytest.raises(RuntimeError, match=r"^learner rank 0 failed in write: the memory ran out: 3 GiB are free$"):
        drive(world, FakeArchive())
    assert world.calls["learner.start"] == 2


def test_a_recovery_is_reported_counted_and_timed(tmp_path: Path) -> None:
    world = World(configured(tmp_path, "loop.checkpoint_every=9"), (Fault("learner.train", 3),), **MIXED)
    outcome, archive = made(world)
    assert archive.recorded[3]["restarts/learner"] == 1 and archive.recorded[3]["recovery/steps"] == 2
    assert archive.recorded[3]["seconds/recovery"] >= 0 and "recovery/steps" not in archive.recorded[4]
    assert ("learner", "restart") in archive.events and ("learner", "recovered") in archive.events
    reported = next(line for line in outcome.said if "the learner is" in line)
    assert reported.endswith("lost and rebuilt: learner rank 0 died in train_step: learner is gone")
    assert outcome.fleet.up()["learner"]


LEARNER = ("learner.start", "learner.load", *CALLS)
OTHERS = ("player.play", "player.evaluate", "worker.update", "filter.admit", "filter.close")
FAULTS = st.one_of(
    st.builds(
        Fault, st.sampled_from(LEARNER), st.integers(2, 14), st.sampled_from(["die", "hang", "stall"]), st.booleans()
    ),
    st.builds(Fault, st.sampled_from(OTHERS), st.integers(2, 14), st.just("die"), st.booleans()),
)


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_loss_within_refill_rounds_begins_them_anew_so_that_no_step_trains_on_more_than_its_first_round_held(
    tmp_path: Path, staleness: int
) -> None:
    """The groups that are retried, from other weights, may all have the signal that the first ones lacked."""
    words = ("filter.refill=true", "filter.max_refill_rounds=2", f"loop.max_staleness={staleness}", "loop.steps=3")
    plays, lost, coordinators = Counter[str](), [], list[Coordinator]()

    def rewards(ticket, index: int) -> float:
        plays[ticket.ticket_id] += index == 0
        return float(index % 2 and (plays[ticket.ticket_id] > 1 or ticket.ticket_id != "000002-000"))

    world = World(configured(tmp_path, *words), rewards=rewards, drifts=True)

    def lose(kind: str, _: int) -> None:
        second = coordinators[0].steps.windows.get(2) if coordinators else None
        if not lost and second is not None and len(second.tickets) > 3:
            lost.append(kind)
            coordinators[0].fleet.learner.kill()

    world.on_call = lose
    outcome, archive = made(world, coordinators.append)
    assert lost and not recoveries(archive)[0]["same"]
    assert [list(rows.values()) for _, rows in sorted(archive.steps.items())] == [["kept"] * 3] * 3
    assert outcome.steps.source.cursor == outcome.ledger.issued == 9, "the refill's task is the next step's"


@QUICK
@given(
    seed=st.integers(0, 10**9),
    staleness=st.integers(0, 3),
    every=st.integers(1, 5),
    faults=st.lists(FAULTS, max_size=4),
    ranks=st.lists(st.integers(1, 3), min_size=6, max_size=6),
    drifts=st.booleans(),
    refill=st.booleans(),
)
def test_whatever_is_lost_and_whenever_the_ledger_balances_and_no_task_is_lost_or_doubled(
    tmp_path_factory,
    seed: int,
    staleness: int,
    every: int,
    faults: list[Fault],
    ranks: list[int],
    drifts: bool,
    refill: bool,
) -> None:
    words = [f"loop.max_staleness={staleness}", f"loop.checkpoint_every={every}", f"filter.refill={refill}"]
    words += ["cluster.max_restarts=9", "learner.ranks=3", "loop.max_attempts=9", "filter.no_signal_limit=99"]
    config = configured(tmp_path_factory.mktemp("run"), *words)
    world = World(config, tuple(faults), paced(seed), room=lambda made: ranks[made % 6], drifts=drifts)
    outcome, _ = made(world)
    assert outcome.steps.admission.clock == 4
    assert outcome.steps.source.cursor == outcome.ledger.issued


@QUICK
@given(
    seed=st.integers(0, 10**9),
    staleness=st.integers(0, 3),
    faults=st.lists(FAULTS, min_size=1, max_size=3),
    drifts=st.booleans(),
    at=st.integers(1, 90),
    killed=st.booleans(),
)
@example(seed=0, staleness=0, faults=[Fault("learner.start", 2, "die", False)], drifts=False, at=68, killed=True)
def test_a_stop_or_a_kill_of_the_driver_in_the_midst_of_recoveries_leaves_a_run_that_a_resume_completes(
    tmp_path_factory, seed: int, staleness: int, faults: list[Fault], drifts: bool, at: int, killed: bool
) -> None:
    words = (f"loop.max_staleness={staleness}", "cluster.max_restarts=9", "loop.max_attempts=9")
    world = World(configured(tmp_path_factory.mktemp("run"), *words), tuple(faults), paced(seed), drifts=drifts)
    archive, coordinators = FakeArchive(), []

    def interrupt(_: str, number: int) -> None:
        if number == at and killed:
            clock.crash()
        elif number >= at and coordinators and not killed:
            coordinators[-1].stop(STOP)

    world.on_call = interrupt
    try:
        check(drive(world, archive, coordinators.append), world, archive)
    except clock.Crashed:
        assert killed
    world.on_call, world.faults = None, ()
    outcome = drive(world, archive, resume=True)
    check(outcome, world, archive)
    assert outcome.steps.admission.clock == 4
