"""A checkpoint is written while the next step's groups are played, on fakes: a play and a training take one virtual
second, a checkpoint `SAVE_S`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from squelch.cluster.control.actor_errors import Refused
from squelch.cluster.loop.coordinator import Coordinator
from squelch.cluster.loop.persistence.checkpoint_folders import checkpoint_dir, checkpoints, prune
from squelch.cluster.loop.persistence.state import read_state
from squelch.cluster.loop.watchers.alarms import Alarms
from squelch.cluster.runs.ending import EndCause, Ending
from squelch.learner.checkpoint import seal as sealing
from tests.fakes import clock
from tests.fakes.actors import FakeArchive, Fault, World
from tests.fakes.run import Outcome, check, drive, settings
from tests.fakes.transport import behind

SAVE_S = 40.0
DISK_S = 100.0
STOP = Ending(EndCause.SIGNAL, "SIGTERM")


def slow(folder: Path, *words: str, faults: tuple[Fault, ...] = (), drifts: bool = False) -> World:
    """Four steps of three groups, each of which trains; a checkpoint after every second."""
    quiet = ("validation.every=9", "scorer.probe.every=0", "scorer.every=9")
    seconds = {"learner.save": SAVE_S, "player.play": 10.0}
    pace: Callable[[str], float] = lambda kind: seconds.get(kind, 1.0)  # noqa: E731
    return World(settings(folder, *quiet, *words), faults, pace, lambda _, index: float(index % 2), drifts=drifts)


def made(world: World, prepare: Callable[[Coordinator], None] = lambda _: None) -> tuple[Outcome, FakeArchive]:
    archive = FakeArchive()
    outcome = drive(world, archive, prepare)
    check(outcome, world, archive)
    return outcome, archive


def times_of(world: World) -> dict[str, float]:
    """When each call began, virtual seconds, by kind and number; filled as the world is driven."""
    found: dict[str, float] = {}

    def note(kind: str, _: int) -> None:
        found.setdefault(f"{kind} {world.calls[kind]}", asyncio.get_running_loop().time())

    world.on_call = note
    return found


def test_the_next_steps_groups_are_played_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    world = slow(tmp_path)
    at = times_of(world)
    outcome, archive = made(world)
    save = at["learner.save 1"]
    assert sum(save <= at[f"player.play {n}"] < save + SAVE_S for n in range(1, 13)) == 3, "the whole next step is"
    assert at["learner.train 3"] == pytest.approx(save + SAVE_S), "its update waits for the checkpoint alone"
    held, written = (archive.recorded[3][f"seconds/{part}"] for part in ("checkpoint", "checkpoint_write"))
    assert held >= 0 and written >= 0 and "seconds/checkpoint" not in archive.recorded[4]
    events = [facts for event, facts in zip(archive.events, archive.facts, strict=True) if event[1] == "checkpoint"]
    assert [(found["step"], list(found["seconds"])) for found in events] == [
        (2, ["shards", "seal"]),
        (4, ["shards", "seal"]),
    ]
    assert [step for step, _ in checkpoints(world.config.run_dir)] == [2, 4]
    assert outcome.ledger.counts()["trained"] == 12


def test_a_checkpoint_holds_the_state_of_its_own_step_although_the_next_is_under_way(tmp_path: Path) -> None:
    words = ("loop.keep_checkpoints=9", "loop.checkpoint_every=1")
    world, plain = slow(tmp_path / "slow", *words), slow(tmp_path / "plain", *words)
    plain.pace = lambda kind: 0.0 if kind == "learner.save" else 10.0
    made(world), made(plain)
    for step in range(1, 5):
        ours, theirs = (read_state(checkpoint_dir(one.config.run_dir, step)) for one in (world, plain))
        assert ours.clock == step == theirs.clock and ours.version == theirs.version
        assert (ours.cursor, ours.open_tickets, ours.ledger) == (theirs.cursor, theirs.open_tickets, theirs.ledger)
        assert ours.filter == theirs.filter


@pytest.mark.parametrize("staleness", [0, 2])
@pytest.mark.parametrize("drifts", [False, True])
def test_a_learner_lost_at_any_moment_of_a_write_costs_one_restart_and_no_checkpoint(
    tmp_path: Path, drifts: bool, staleness: int
) -> None:
    """Rebuilt weights that differ belong to no record of the step: its checkpoint is dropped, the next step has one."""
    words = (f"loop.max_staleness={staleness}",)
    whole = slow(tmp_path / "whole", *words, drifts=drifts)
    reference, _ = made(whole)
    for number in range(9):
        world = slow(tmp_path / str(number), *words, drifts=drifts)

        def prepare(coordinator: Coordinator, world: World = world, number: int = number) -> None:
            def kill(kind: str, _: int) -> None:
                if kind == "learner.save" and world.calls[kind] == 1:
                    loop, first = asyncio.get_running_loop(), coordinator.fleet.learner
                    loop.call_later(number * SAVE_S / 8 + 0.5, first.kill)

            world.on_call = kill

        outcome, archive = made(world, prepare)
        assert outcome.fleet.restarts.counts == {"learner": 1}, f"moment {number}"
        assert outcome.ledger.counts() == reference.ledger.counts()
        saved = [step for step, _ in checkpoints(world.config.run_dir)]
        sealed = number == 8
        assert saved == ([2, 4] if sealed or not drifts else [3, 4]), f"moment {number}"
        assert "seconds/checkpoint_write" in archive.recorded[3 if 2 in saved else 4]
        if not drifts:
            assert behind(outcome.fleet.learner).weights == behind(reference.fleet.learner).weights
            assert world.versions == whole.versions


@pytest.mark.parametrize("what", ["hang", "stall"])
def test_ranks_that_hang_in_a_write_are_lost_after_their_bound_and_their_successors_write_it(
    tmp_path: Path, what: str
) -> None:
    world = slow(tmp_path, "learner.checkpoint_timeout_s=100", faults=(Fault("learner.save", 1, what),))
    at = times_of(world)
    outcome, _ = made(world)
    assert 100 <= at["learner.save 2"] - at["learner.save 1"] < 120
    assert outcome.fleet.restarts.counts == {"learner": 1} and at["learner.train 5"] > at["learner.save 2"]
    assert [step for step, _ in checkpoints(world.config.run_dir)] == [2, 4]


@pytest.mark.parametrize("after_s", [0.5, 15.0, 39.5])
@pytest.mark.parametrize("staleness", [0, 2])
def test_a_stop_in_a_write_waits_for_the_checkpoint_and_a_resume_goes_on_from_it(
    tmp_path: Path, staleness: int, after_s: float
) -> None:
    world, archive = slow(tmp_path, f"loop.max_staleness={staleness}"), FakeArchive()

    def prepare(coordinator: Coordinator) -> None:
        def stop(kind: str, _: int) -> None:
            if kind == "learner.save" and world.calls[kind] == 1:
                asyncio.get_running_loop().call_later(after_s, coordinator.stop, STOP)

        world.on_call = stop

    outcome = drive(world, archive, prepare)
    check(outcome, world, archive)
    done = outcome.steps.admission.clock
    assert checkpoints(world.config.run_dir)[-1][0] == done and done in (2, 3)
    assert world.calls["learner.save"] == (1 if done == 2 else 2)
    world.on_call = None
    resumed = drive(world, archive, resume=True)
    check(resumed, world, archive)
    assert resumed.steps.admission.clock == 4 and resumed.ledger.counts()["trained"] == 12


@pytest.mark.parametrize("after_s", [0.5, 15.0, 39.5, 40.5])
def test_a_driver_killed_in_a_write_goes_on_from_the_checkpoint_before_it(tmp_path: Path, after_s: float) -> None:
    world, archive = slow(tmp_path, "loop.checkpoint_every=1"), FakeArchive()

    def kill(kind: str, _: int) -> None:
        if kind == "learner.save" and world.calls[kind] == 2:
            asyncio.get_running_loop().call_later(after_s, clock.crash)

    world.on_call = kill
    with pytest.raises(clock.Crashed):
        drive(world, archive)
    assert checkpoints(world.config.run_dir)[-1][0] == (1 if after_s < SAVE_S else 2)
    world.on_call = None
    outcome = drive(world, archive, resume=True)
    check(outcome, world, archive)
    assert outcome.steps.admission.clock == 4 and outcome.ledger.counts()["trained"] == 12


def on_a_slow_disk(coordinator: Coordinator) -> None:
    """Files are complete after `SAVE_S`, and on the disk after another `DISK_S`."""
    sealed = coordinator.learning._sealed

    async def slowly(path: Path) -> float:
        await asyncio.sleep(DISK_S)
        return await sealed(path)

    coordinator.learning._sealed = slowly


@pytest.mark.parametrize("staleness", [0, 1])
def test_the_next_update_waits_for_the_files_and_not_for_the_disk(tmp_path: Path, staleness: int) -> None:
    world = slow(tmp_path, f"loop.max_staleness={staleness}", "loop.steps=6", "loop.checkpoint_every=1")
    at = times_of(world)
    outcome, _ = made(world, on_a_slow_disk)
    for step in range(1, 6):
        saved = at[f"learner.save {step}"] + SAVE_S
        assert at[f"learner.train {step + 1}"] == pytest.approx(saved, abs=1.0), "its files are complete, and no more"
        assert at[f"learner.save {step + 1}"] == pytest.approx(saved + DISK_S, abs=1.0), "at most one is written"
    assert checkpoints(world.config.run_dir)[-1][0] == 6 and not outcome.fleet.restarts.counts


@pytest.mark.parametrize("after_s", [10.0, 90.0, 110.0])
@pytest.mark.parametrize("drifts", [False, True])
@pytest.mark.parametrize("staleness", [0, 1])
def test_a_learner_lost_while_the_disk_is_waited_for_goes_on_from_that_checkpoint(
    tmp_path: Path, staleness: int, drifts: bool, after_s: float
) -> None:
    words = (f"loop.max_staleness={staleness}", "learner.hung_after_s=600")
    whole = slow(tmp_path / "whole", *words, drifts=drifts)
    reference, _ = made(whole, on_a_slow_disk)
    world = slow(tmp_path / "lost", *words, drifts=drifts)

    def prepare(coordinator: Coordinator) -> None:
        on_a_slow_disk(coordinator)

        def kill(kind: str, _: int) -> None:
            if kind == "learner.save" and world.calls[kind] == 1:
                first = coordinator.fleet.learner
                asyncio.get_running_loop().call_later(SAVE_S + after_s, first.kill)

        world.on_call = kill

    outcome, archive = made(world, prepare)
    assert outcome.fleet.restarts.counts == {"learner": 1} and outcome.ledger.counts() == reference.ledger.counts()
    found = [facts for event, facts in zip(archive.events, archive.facts, strict=True) if event[1] == "recovered"]
    assert world.resumed == [False, True], "the checkpoint was sealed first"
    assert [step for step, _ in checkpoints(world.config.run_dir)] == [2, 4] and len(found) == 1
    if not drifts:
        assert behind(outcome.fleet.learner).weights == behind(reference.fleet.learner).weights
        assert world.versions == whole.versions


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_disk_that_refuses_complete_files_ends_the_run_and_keeps_the_checkpoint_before(
    tmp_path: Path, staleness: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = sealing.put_in_place

    def full(aside: Path, target: Path) -> None:
        if target.name == "step-2":
            raise OSError(28, "No space left on device")
        put(aside, target)

    monkeypatch.setattr(sealing, "put_in_place", full)
    world = slow(tmp_path, f"loop.max_staleness={staleness}", "loop.checkpoint_every=1")
    with pytest.raises(Refused, match=r"checkpoint .*step-2 could not be written.*No space left on device"):
        drive(world, FakeArchive())
    assert [path.name for path in (world.config.run_dir / "checkpoints").iterdir()] == ["step-1"]


def test_a_disk_that_never_takes_the_files_ends_the_run_with_their_path(tmp_path: Path) -> None:
    world = slow(tmp_path, "learner.checkpoint_timeout_s=100")

    def prepare(coordinator: Coordinator) -> None:
        loop = asyncio.get_running_loop()
        hangs = lambda executor, call, *own: loop.create_future() if call is sealing.seal else run(executor, call, *own)  # noqa: E731
        run, loop.run_in_executor = loop.run_in_executor, hangs

    with pytest.raises(TimeoutError, match=r"step-2 was written, but its disk has not taken it within 100 s"):
        drive(world, FakeArchive(), prepare)
    assert not checkpoints(world.config.run_dir)


def test_a_driver_killed_while_the_disk_is_waited_for_goes_on_from_the_checkpoint_before(tmp_path: Path) -> None:
    world, archive = slow(tmp_path, "loop.checkpoint_every=1", "loop.max_staleness=1"), FakeArchive()

    def kill(kind: str, _: int) -> None:
        if kind == "learner.train" and world.calls[kind] == 3:
            asyncio.get_running_loop().call_later(0.5, clock.crash)

    world.on_call = kill
    with pytest.raises(clock.Crashed):
        drive(world, archive, on_a_slow_disk)
    assert [step for step, _ in checkpoints(world.config.run_dir)] == [1]
    world.on_call = None
    outcome = drive(world, archive, resume=True)
    check(outcome, world, archive)
    assert outcome.steps.admission.clock == 4 and outcome.ledger.counts()["trained"] == 12


def test_a_disk_that_refuses_ends_the_run_before_the_next_update(tmp_path: Path) -> None:
    world, archive = slow(tmp_path, faults=(Fault("learner.save", 1, "refuse"),)), FakeArchive()
    with pytest.raises(Refused, match="save refused"):
        drive(world, archive)
    assert world.calls["learner.train"] == 2 and not checkpoints(world.config.run_dir)


def test_a_run_that_fails_otherwise_meanwhile_still_has_the_checkpoint(tmp_path: Path) -> None:
    world, archive = slow(tmp_path, "filter.on_no_signal=abort"), FakeArchive()
    world.rewards = lambda ticket, index: float(index % 2 and ticket.step < 3)

    def prepare(coordinator: Coordinator) -> None:
        async def fails(number: int) -> None:
            await asyncio.sleep(5.0)
            raise OSError("the filter's disk is gone")

        decided = coordinator.steps.decided
        coordinator.steps.decided = lambda number: decided(number) if number < 3 else fails(number)

    with pytest.raises(OSError, match="the filter's disk is gone"):
        drive(world, archive, prepare)
    assert [step for step, _ in checkpoints(world.config.run_dir)] == [2]


def test_a_run_that_fails_with_its_ranks_lost_still_has_the_checkpoint_whose_files_are_complete(tmp_path: Path) -> None:
    world = slow(tmp_path)

    def prepare(coordinator: Coordinator) -> None:
        on_a_slow_disk(coordinator)

        async def fails(number: int) -> None:
            await asyncio.sleep(SAVE_S + DISK_S / 2)
            asyncio.get_running_loop().call_later(DISK_S / 4, coordinator.fleet.learner.kill)
            raise OSError("the filter's disk is gone")

        decided = coordinator.steps.decided
        coordinator.steps.decided = lambda number: decided(number) if number < 3 else fails(number)

    with pytest.raises(OSError, match="the filter's disk is gone"):
        drive(world, FakeArchive(), prepare)
    assert [step for step, _ in checkpoints(world.config.run_dir)] == [2]


def test_a_disk_that_hangs_in_deleting_ends_the_run_with_the_folder(tmp_path: Path) -> None:
    world = slow(tmp_path, "learner.checkpoint_timeout_s=100")

    def prepare(coordinator: Coordinator) -> None:
        loop = asyncio.get_running_loop()
        hangs = lambda executor, call, *own: loop.create_future() if call is prune else run(executor, call, *own)  # noqa: E731
        run, loop.run_in_executor = loop.run_in_executor, hangs

    with pytest.raises(TimeoutError, match=r"checkpoints: the disk has not deleted .* within 100 s"):
        drive(world, FakeArchive(), prepare)
    assert [step for step, _ in checkpoints(world.config.run_dir)] == [2]


def test_the_best_checkpoint_stays_until_the_one_of_a_better_step_is_on_the_disk(tmp_path: Path) -> None:
    world = slow(tmp_path, "loop.checkpoint_every=1", "loop.keep_checkpoints=1", "loop.max_staleness=1")

    def prepare(coordinator: Coordinator) -> None:
        on_a_slow_disk(coordinator)
        validation = coordinator.checkpointing.validation

        def validate(kind: str, _: int) -> None:
            call = f"{kind} {world.calls[kind]}"
            validation.best_step = {"learner.save 1": 1, "learner.train 3": 3}.get(call, validation.best_step)
            if call == "learner.save 3":
                asyncio.get_running_loop().call_later(0.5, clock.crash)

        world.on_call = validate

    with pytest.raises(clock.Crashed):
        drive(world, FakeArchive(), prepare)
    assert [step for step, _ in checkpoints(world.config.run_dir)] == [1, 2]
    assert read_state(checkpoint_dir(world.config.run_dir, 2)).best_step == 1


def test_the_checkpoint_that_an_alarm_names_stays_although_a_newer_one_from_before_it_follows(tmp_path: Path) -> None:
    words = ("loop.steps=6", "loop.checkpoint_every=1", "loop.keep_checkpoints=1", "loop.max_staleness=1")
    world, said = slow(tmp_path, *words), list[Alarms]()

    def prepare(coordinator: Coordinator) -> None:
        on_a_slow_disk(coordinator)
        alarms = coordinator.checkpointing.alarms

        def note(kind: str, _: int) -> None:
            call = f"{kind} {world.calls[kind]}"
            if call == "learner.train 3":  # step 2 waits for the disk
                alarms.alarm.since = 2
                alarms._report_fall(3, "input_dependence_falling", "it falls")
                said.append(alarms)
            elif call == "learner.save 4":
                asyncio.get_running_loop().call_later(0.5, clock.crash)

        world.on_call = note

    with pytest.raises(clock.Crashed):
        drive(world, FakeArchive(), prepare)
    assert [step for step, _ in checkpoints(world.config.run_dir)] == [1, 2, 3]
    restored = Alarms(world.config, said[0].run_log)
    restored.restore(read_state(checkpoint_dir(world.config.run_dir, 3)).watchers["alarms"], ())
    assert restored.named == 1
    restored.alarm.since = 5
    assert restored.named is None, "the fall is over"
