"""The environment actor without Ray: what it checks before the first ticket comes, and whom it plays with."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from squelch.actors.config import EnvironmentActorConfig
from squelch.actors.play.actor import EnvironmentActor, _try_environment
from squelch.actors.sampling import SamplingConfig
from squelch.envs.config import EnvironmentConfig
from squelch.envs.wording import PromptName
from squelch.kit.archive.rows import to_table
from squelch.kit.records.records import Group, Task, Ticket
from tests.actors.play.test_codec import byte_level_bpe, save_model


def chosen(prompt: PromptName) -> EnvironmentConfig:
    return EnvironmentConfig(options={"observation_format": "grid_coord"}, prompt=prompt)


def actor(folder: Path, prompt: PromptName) -> EnvironmentActor:
    model = save_model(folder, byte_level_bpe())
    return EnvironmentActor("environment-0", model, chosen(prompt), SamplingConfig(), EnvironmentActorConfig(), 2048)


def test_the_environment_that_an_actor_tries_at_its_start_is_in_the_style_that_is_set() -> None:
    _try_environment(chosen("natural"))
    with pytest.raises(ValueError, match=r"needs environment\.prompt=natural"):
        _try_environment(chosen("tiny"))


def test_a_group_is_packed_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    player, packing = actor(tmp_path, "natural"), set[bool]()

    def noted(group: Group) -> pa.Table:
        packing.add(threading.current_thread() is threading.main_thread())
        return to_table(group)

    monkeypatch.setattr("squelch.actors.play.actor.to_table", noted)

    async def play() -> None:
        await player.set_workers({})
        ticket = Ticket("000003-000", 1, Task("FrozenLake", 7), 2, 11, 1.0, "rollout-9")
        await player.play(ticket)
        await player.evaluate([ticket])

    asyncio.run(play())
    assert packing == {False}


def test_a_ticket_for_a_rollout_worker_that_the_actor_does_not_know_fails_by_name(tmp_path: Path) -> None:
    player = actor(tmp_path, "natural")

    async def play() -> list[str]:
        await player.set_workers({"rollout-0": None})
        summary, _ = await player.play(Ticket("000003-000", 1, Task("FrozenLake", 7), 4, 11, 1.0, "rollout-9"))
        return [str(failure) for failure in summary.failures]

    failures = asyncio.run(play())
    assert len(failures) == 4
    assert failures[0].startswith("generation_error: rollout worker rollout-9") and "rollout-0" in failures[0]
