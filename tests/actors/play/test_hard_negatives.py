"""The prompts of hard negatives: an environment's twins, else the nearest of drawn tasks."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squelch.actors.config import EnvironmentActorConfig
from squelch.actors.play import hard_negatives
from squelch.actors.play.codec import ChatCodec
from squelch.actors.play.player import EnvironmentPlayer
from squelch.actors.play.step_pool import CallFailed
from squelch.actors.sampling import SamplingConfig
from squelch.cluster.control.admission import task_of
from squelch.envs.config import EnvironmentConfig
from squelch.envs.mixture import Mixture
from squelch.kit.diagnosis.edit_distance import edit_distances, nearest
from squelch.kit.records.records import Cluster, Ticket
from squelch.kit.scoring.settings import PROBE_TWINS

ROWS = st.lists(st.integers(0, 3), max_size=8)


def made(codec: ChatCodec, name: str, count: int = 4) -> dict[str, Cluster]:
    mixture = Mixture.of(EnvironmentConfig(name=name))
    tasks = [task_of(mixture.entries[0], 50 + i, "validation") for i in range(count)]
    tickets = [Ticket(f"probe-{i}", 0, task, 1, 0, 1.0) for i, task in enumerate(tasks)]

    async def run() -> dict[str, Cluster]:
        player = EnvironmentPlayer(codec, mixture, SamplingConfig(), EnvironmentActorConfig(), 4096, never)
        try:
            return await player.clusters(tickets)
        finally:
            player.close()

    return asyncio.run(run())


async def never(*_: object) -> None:
    raise AssertionError("nothing is sampled")


@pytest.mark.parametrize("name", ["FrozenLake", "Countdown"])
def test_a_cluster_is_the_prompt_that_is_played_and_its_twins(codec: ChatCodec, name: str) -> None:
    found = made(codec, name)
    assert sorted(found) == [f"probe-{i}" for i in range(4)]
    for cluster in found.values():
        shown = {twin.tobytes() for twin in cluster.twins}
        assert len(shown) == len(cluster.twins) <= PROBE_TWINS and cluster.prompt.tobytes() not in shown
        assert cluster.answers_changed is None or 0 <= cluster.answers_changed <= 1
    again = made(codec, name)
    for ticket, cluster in found.items():
        np.testing.assert_array_equal(cluster.prompt, again[ticket].prompt)
        assert len(cluster.twins) == len(again[ticket].twins)
        assert all(np.array_equal(one, other) for one, other in zip(cluster.twins, again[ticket].twins, strict=True))


def test_without_twins_the_nearest_of_drawn_tasks_stand_in(codec: ChatCodec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hard_negatives, "DRAWN", 30)
    found = made(codec, "MetaMathQA", 2)
    for cluster in found.values():
        assert len(cluster.twins) == PROBE_TWINS and cluster.answers_changed is None
        assert all(not np.array_equal(cluster.prompt, twin) for twin in cluster.twins)
    assert any(
        not np.array_equal(one, other)
        for one, other in zip(found["probe-0"].twins, found["probe-1"].twins, strict=True)
    )


def test_an_environment_that_fails_is_named_and_there_are_no_clusters(
    codec: ChatCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    from squelch.envs.grid_worlds.frozen_lake import FrozenLake

    def broken(*_: object) -> list[str]:
        raise KeyError("no such lake")

    monkeypatch.setattr(FrozenLake, "twins", broken)
    with pytest.raises(CallFailed, match="no such lake"):
        made(codec, "FrozenLake")


def plain_distance(one: list[int], other: list[int]) -> int:
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        before, row = row, [i]
        for j, b in enumerate(other, 1):
            row.append(min(before[j] + 1, row[-1] + 1, before[j - 1] + (a != b)))
    return row[-1]


@given(one=ROWS, others=st.lists(ROWS, min_size=1, max_size=5))
def test_edit_distances_are_levenshteins(one: list[int], others: list[list[int]]) -> None:
    found = edit_distances(np.array(one, int), [np.array(row, int) for row in others])
    assert found.tolist() == [plain_distance(one, row) for row in others]


@given(one=ROWS, others=st.lists(ROWS, max_size=9), count=st.integers(1, 4))
def test_the_nearest_are_those_of_the_least_distance_the_first_of_equal_ones(
    one: list[int], others: list[list[int]], count: int
) -> None:
    head, tail = [7, 8, 9], [5, 5]
    wrapped = [np.array([*head, *row, *tail]) for row in (one, *others)]
    found = nearest(wrapped[0], wrapped[1:], count)
    order = sorted(range(len(others)), key=lambda place: plain_distance(one, others[place]))
    assert found == order[:count]
