"""How validation tasks are played on in-process actors, and how failed ones are reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from squelch.cluster.control.actor_errors import Failed
from squelch.cluster.loop.tickets.playing import Play, PlayedGroup
from squelch.kit.records.failures import Failure, FailureCause
from squelch.kit.records.records import Ticket
from tests.fakes.actors import FakeArchive, Fault, World
from tests.fakes.run import Outcome, check, drive
from tests.fakes.run import settings as configured


def ran(world: World) -> tuple[Outcome, FakeArchive]:
    archive = FakeArchive()
    outcome = drive(world, archive)
    check(outcome, world, archive)
    return outcome, archive


@pytest.mark.parametrize(
    ("held", "workers", "tasks", "batches", "at_once"),
    [(8, 2, 22, (4, 4, 4, 4, 4, 2), 4), (5, 1, 8, (4, 4), 1), (3, 1, 6, (3, 3), 1), (99, 1, 8, (4, 4), 2)],
)
def test_a_validation_plays_lots_of_a_groups_size_and_no_more_at_once_than_the_engines_hold(
    tmp_path: Path, held: int, workers: int, tasks: int, batches: tuple[int, ...], at_once: int
) -> None:
    """A task that waits in an engine's queue would lose its time there."""
    words = (f"rollout.max_num_seqs={held}", f"rollout.count={workers}", f"validation.tasks={tasks}")
    world = World(configured(tmp_path, *words))
    assert world.config.sampling.group_size == 4
    _, archive = ran(world)
    validations = sum("validation/failed" in row for row in archive.recorded.values())
    assert sorted(world.evaluated) == sorted(batches * validations) and world.evaluating_most == at_once


@pytest.mark.parametrize(("held", "at_once"), [(8, 2), (3, 1), (99, 4)])
def test_the_fixed_probe_plays_no_more_groups_at_once_than_the_engines_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int, at_once: int
) -> None:
    playing, most = 0, 0

    async def play(self: Play, ticket: Ticket) -> PlayedGroup:
        nonlocal playing, most
        probing = ticket.ticket_id.startswith("probe-")
        playing += probing
        most = max(most, playing)
        try:
            return await whole(self, ticket)
        finally:
            playing -= probing

    whole = Play.group
    monkeypatch.setattr(Play, "group", play)
    words = (f"rollout.max_num_seqs={held}", "rollout.count=1", "scorer.probe.tasks=4", "scorer.probe.samples=4")
    ran(World(configured(tmp_path, *words, "validation.tasks=4")))
    assert most == at_once, "of four groups of four"


def test_each_lot_has_the_time_of_a_group_however_many_there_are(tmp_path: Path) -> None:
    words = ("rollout.max_num_seqs=4", "rollout.count=1", "environment_actor.count=1", "validation.tasks=40")
    world = World(configured(tmp_path, *words), pace=lambda kind: 40.0 if kind == "player.evaluate" else 1.0)
    outcome, _ = ran(world)
    assert outcome.coordinator.config.loop.group_timeout_s == 50 and world.calls["player.evaluate"] % 10 == 0


def test_tasks_that_fail_count_as_no_success_and_are_reported_by_cause(tmp_path: Path) -> None:
    def failing(ticket: Ticket) -> Failure | None:
        late = ticket.task.split == "validation" and ticket.task.seed % 3 < 2
        return Failure(FailureCause.GENERATION_TIMEOUT, "9 s") if late else None

    world = World(configured(tmp_path, "validation.tasks=9", "scorer.probe.every=0"), failing=failing)
    world.rewards = lambda ticket, index: 1.0 if ticket.task.split == "validation" else float(index % 2)
    outcome, archive = ran(world)
    validated = [row for row in archive.recorded.values() if "validation/failed" in row]
    assert validated and all(row["validation/failed"] == 6 for row in validated)
    assert all(row["validation/success"] == pytest.approx(3 / 9) for row in validated)
    reported = "6 of 9 validation tasks failed and count as no success: generation_timeout 6 (one: 9 s)"
    assert sum(reported in line for line in outcome.said) == len(validated)
    assert archive.events.count(("validation", "tasks_failed")) == len(validated)
    assert world.calls["worker.health"] <= 3 * len(validated), "a worker is asked once a batch, not once a task"


def test_the_tasks_of_an_environment_actor_that_raises_are_played_by_another(tmp_path: Path) -> None:
    words = ("environment_actor.count=2", "validation.tasks=8", "loop.max_attempts=2")
    outcome, archive = ran(World(configured(tmp_path, *words), broken=frozenset({"env-0"})))
    assert archive.recorded[0]["validation/failed"] == 0 and outcome.coordinator.ending is None


def test_one_that_always_raises_ends_the_run_by_its_name_and_error(tmp_path: Path) -> None:
    faults = tuple(Fault("player.evaluate", call, "fail") for call in range(1, 20))
    world = World(configured(tmp_path), faults)
    with pytest.raises(RuntimeError, match=r"max_attempts times; last cause: actor_error: env-\d: .*failed") as raised:
        drive(world, FakeArchive())
    assert isinstance(raised.value.__cause__, Failed), "the log keeps the actor's own error"


def test_lots_that_still_play_are_cancelled_when_the_validation_ends_with_an_error(tmp_path: Path) -> None:
    faults = tuple(Fault("player.evaluate", call, "fail") for call in (1, 3, 4))
    world = World(configured(tmp_path, "environment_actor.count=1", "validation.tasks=8"), faults)
    with pytest.raises(RuntimeError, match="last cause"):
        drive(world, FakeArchive())
    assert world.evaluating == 0
