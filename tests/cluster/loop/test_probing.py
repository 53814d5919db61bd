"""Clusters of hard negatives: asked for once, sent with every evaluation of the fixed probe, never the end of a run."""

from pathlib import Path

import pytest

from tests.fakes.actors import FakeArchive, Fault, World
from tests.fakes.run import check, drive, settings

TASKS = ["probe-000", "probe-001"]


def run(folder: Path, *words: str, faults: tuple[Fault, ...] = ()) -> tuple[World, FakeArchive]:
    world, archive = World(settings(folder, *words), faults), FakeArchive()
    check(drive(world, archive), world, archive)
    assert sorted(world.probed) == [0, 2, 4]
    return world, archive


def test_clusters_are_asked_for_once_and_come_with_every_evaluation(tmp_path: Path) -> None:
    world, _ = run(tmp_path)
    assert world.calls["player.clusters"] == 1 and world.clusters == dict.fromkeys((0, 2, 4), TASKS)


@pytest.mark.parametrize(
    ("words", "calls"),
    [
        (("scorer.probe.hard=false",), 0),
        (("environment.name=MetaMathQA", "environment.options={}"), 0),
        (("environment.name=MetaMathQA", "environment.options={}", "scorer.probe.hard=true"), 1),
    ],
)
def test_without_twins_they_are_asked_for_only_if_a_user_says_so(
    tmp_path: Path, words: tuple[str, ...], calls: int
) -> None:
    world, _ = run(tmp_path, *words)
    assert world.calls["player.clusters"] == calls
    assert world.clusters == dict.fromkeys((0, 2, 4), TASKS if calls else [])


def test_clusters_that_cannot_be_made_cost_a_run_the_hard_negatives_and_nothing_else(tmp_path: Path) -> None:
    faults = tuple(Fault("player.clusters", call, "fail") for call in range(1, 9))
    world, archive = run(tmp_path, faults=faults)
    assert world.calls["player.clusters"] == world.config.loop.max_attempts
    assert archive.events.count(("scorer", "hard_negatives_failed")) == 1
    assert world.clusters == {step: [] for step in (0, 2, 4)}


def test_a_dead_actor_is_replaced_and_another_one_makes_them(tmp_path: Path) -> None:
    world, _ = run(tmp_path, faults=(Fault("player.clusters", 1, "die"),))
    assert world.calls["player.clusters"] == 2 and world.clusters[0] == TASKS
