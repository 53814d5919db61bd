"""Overlap on in-process actors: with `max_staleness` > 0 later steps are played while a step is played or trained."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from squelch.cluster.loop.coordinator import Coordinator
from squelch.kit.records.records import Ticket
from tests.fakes.actors import FakeArchive, World
from tests.fakes.run import check, drive
from tests.fakes.run import settings as configured

PROMPTS = 3


def world(folder: Path, staleness: int, pace: Callable[[str], float], *words: str) -> tuple[World, list[str]]:
    """A world whose groups all have a reward variance, and the tickets in the order in which they were played."""
    ended: list[str] = []

    def reward(ticket: Ticket, index: int) -> float:
        if index == 0 and ticket.task.split == "train":
            ended.append(ticket.ticket_id)
        return float(index % 2)

    overrides = (
        f"loop.max_staleness={staleness}",
        f"loop.prompts={PROMPTS}",
        "validation.every=0",
        "scorer.enabled=false",
        *words,
    )
    return World(configured(folder, *overrides), pace=pace, rewards=reward), ended


def straggling(call: int, seconds: float) -> Callable[[str], float]:
    """The `call`-th group that is played takes `seconds`; every other call takes one."""
    plays = iter(range(1, 1000))
    return lambda kind: seconds if kind == "player.play" and next(plays) == call else 1.0


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_stragglers_of_a_step_do_not_hold_back_the_tickets_of_the_next(tmp_path: Path, staleness: int) -> None:
    first_of_step_2 = PROMPTS + 1
    mixed, ended = world(tmp_path, staleness, straggling(first_of_step_2, 40.0))
    archive = FakeArchive()
    outcome = drive(mixed, archive)
    check(outcome, mixed, archive)
    before = ended[: ended.index("000002-000")]
    steps_ahead = {ticket.partition("-")[0] for ticket in before} - {"000001", "000002"}
    assert steps_ahead == {f"{2 + ahead:06d}" for ahead in range(1, staleness + 1)}
    whole = [step for step in steps_ahead if sum(ticket.startswith(step) for ticket in before) == PROMPTS]
    assert len(whole) == staleness, "every ticket of the later steps was played before the straggler"


def test_a_group_played_through_an_update_is_as_stale_as_its_oldest_token(tmp_path: Path) -> None:
    mixed, _ = world(tmp_path, 1, straggling(PROMPTS + 1, 40.0), "loop.steps=2", "rollout.count=1")
    groups: dict[str, tuple[int, int]] = {}

    def watch(coordinator: Coordinator) -> None:
        admit = coordinator.steps.filtering.admit

        async def noted(played: list) -> None:
            groups.update({g.ticket.ticket_id: (g.summary.version_min, g.summary.version_max) for g in played})
            await admit(played)

        coordinator.steps.filtering.admit = noted

    archive = FakeArchive()
    check(drive(mixed, archive, watch), mixed, archive)
    assert groups["000002-000"] == (0, 1), "the weights of step 1 arrived while it was played"
    assert archive.recorded[2]["staleness_max"] == 1


@pytest.mark.parametrize(("staleness", "least"), [(1, 1.6), (2, 1.7)])
def test_with_stages_of_equal_length_steps_take_little_more_than_one_stage(
    tmp_path: Path, staleness: int, least: float
) -> None:
    def seconds(bound: int) -> float:
        lengths = {"player.play": 10.0, "learner.train": 8.0, "learner.publish": 1.0, "worker.update": 1.0}
        paced, _ = world(tmp_path / str(bound), bound, lambda kind: lengths.get(kind, 0.0), "loop.steps=12")
        ended: list[float] = []

        def watch(coordinator: Coordinator) -> None:
            record = coordinator.run_log.step

            def noted(*arguments: object) -> None:
                ended.append(asyncio.get_running_loop().time())
                record(*arguments)

            coordinator.run_log.step = noted

        drive(paced, FakeArchive(), watch)
        return ended[-1] - ended[1]  # without the first two steps, which find nothing played

    assert seconds(0) / seconds(staleness) >= least
