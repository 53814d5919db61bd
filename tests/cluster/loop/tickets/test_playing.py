"""How validation tasks are played on in-process parties, and what is told of those that cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.failures import Failure, FailureCause
from actors.records import Ticket
from tests.fakes.parties import FakeArchive, Fault, World
from tests.fakes.run import Outcome, check, drive
from tests.fakes.run import settings as configured


def ran(world: World) -> tuple[Outcome, FakeArchive]:
    archive = FakeArchive()
    outcome = drive(world, archive)
    check(outcome, world, archive)
    return outcome, archive


@pytest.mark.parametrize(("held", "workers", "players", "at_once"), [(3, 2, 2, 3), (5, 1, 2, 2), (1, 1, 3, 1)])
def test_a_validation_plays_no_more_tasks_at_once_than_the_engines_hold(
    tmp_path: Path, held: int, workers: int, players: int, at_once: int
) -> None:
    """A task that waits in an engine's queue would lose its time there."""
    words = (
        f"rollout.max_num_seqs={held}",
        f"rollout.count={workers}",
        f"environment_actor.count={players}",
        "validation.tasks=12",
    )
    world = World(configured(tmp_path, *words))
    ran(world)
    assert world.evaluated and set(world.evaluated) == {(12 // players, at_once)}


def test_a_share_of_tasks_has_the_time_of_a_group_for_each_lot_of_them(tmp_path: Path) -> None:
    words = ("rollout.max_num_seqs=1", "rollout.count=1", "environment_actor.count=1", "validation.tasks=3")
    world = World(configured(tmp_path, *words), pace=lambda kind: 140.0 if kind == "player.evaluate" else 1.0)
    outcome, _ = ran(world)
    assert outcome.coordinator.config.loop.group_timeout_s == 50 and world.calls["player.evaluate"] == 3


def test_tasks_that_fail_count_as_no_success_and_are_told_by_cause(tmp_path: Path) -> None:
    def failing(ticket: Ticket) -> Failure | None:
        late = ticket.task.split == "validation" and ticket.task.seed % 3 < 2
        return Failure(FailureCause.GENERATION_TIMEOUT) if late else None

    world = World(configured(tmp_path, "validation.tasks=9", "scorer.probe.every=0"), failing=failing)
    world.rewards = lambda ticket, index: 1.0 if ticket.task.split == "validation" else float(index % 2)
    outcome, archive = ran(world)
    validated = [row for row in archive.figures.values() if "validation/failed" in row]
    assert validated and all(row["validation/failed"] == 6 for row in validated)
    assert all(row["validation/success"] == pytest.approx(3 / 9) for row in validated)
    told = "6 of 9 validation tasks failed and count as no success: generation_timeout 6"
    assert sum(told in line for line in outcome.said) == len(validated)
    assert archive.events.count(("validation", "tasks_failed")) == len(validated)
    assert world.calls["worker.health"] == 2 * len(validated), "each worker is asked once, not once a task"


def test_an_environment_actor_that_raises_in_a_validation_is_asked_again(tmp_path: Path) -> None:
    outcome, archive = ran(World(configured(tmp_path), (Fault("player.evaluate", 1, "fail"),)))
    assert archive.figures[0]["validation/failed"] == 0 and outcome.coordinator.ending is None


def test_one_that_always_raises_ends_the_run_by_its_name_and_error(tmp_path: Path) -> None:
    faults = tuple(Fault("player.evaluate", call, "fail") for call in range(1, 20))
    world = World(configured(tmp_path), faults)
    with pytest.raises(RuntimeError, match=r"loop.max_attempts times; last cause: env-\d: player.evaluate failed"):
        drive(world, FakeArchive())
