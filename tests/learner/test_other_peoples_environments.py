"""Groups that the real player plays in other people's environments train a policy for a few steps."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from squelch.actors.config import EnvironmentActorConfig
from squelch.actors.play.codec import ChatCodec
from squelch.actors.play.player import EnvironmentPlayer
from squelch.actors.sampling import SamplingConfig
from squelch.envs.config import EnvironmentConfig
from squelch.envs.remote.__main__ import server_of
from squelch.kit.records.records import Group, Task, Ticket
from squelch.kit.records.splits import split_of
from squelch.learner.trainer import Trainer
from tests.actors.play.test_codec import byte_level_bpe, save_model
from tests.actors.play.test_every_environment import FOREIGN_PACKAGES, OPTIONS, SERVED, ScriptedPolicy
from tests.envs.remote.serving import served
from tests.learner.models import make_config, make_model

STEPS, GROUPS = 2, 2
KINDS = ("solution", "demonstration", "demonstration", "solution")
"""The trajectories of a group, so that its returns vary."""
CONTEXT = 4096

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("alone")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with the tokenizer of the player's tests."""
    folder, tokenizer = tmp_path_factory.mktemp("foreign"), byte_level_bpe()
    make_model(folder, vocabulary=tokenizer.get_vocab_size())
    config = json.loads((folder / "config.json").read_text())
    save_model(folder, tokenizer)
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": CONTEXT}))
    return folder


def played(codec: ChatCodec, name: str, options: dict[str, Any], step: int, number: int) -> Group:
    config = EnvironmentConfig(name=name, options=options)
    seed = step * GROUPS + number
    task = Task(name, seed, "train", tuple(options.items()))
    ticket = Ticket(f"{step:06d}-{number:03d}", step, task, len(KINDS), 3, 1.0, "rollout-0")
    policy = ScriptedPolicy(codec, config, ticket, KINDS)
    bounds, sampling = EnvironmentActorConfig(step_timeout_s=60), SamplingConfig(max_tokens_per_turn=200)
    player = EnvironmentPlayer(codec, config, sampling, bounds, CONTEXT, policy)
    try:
        return asyncio.run(player.play(ticket))
    finally:
        player.close()


def trained(model: Path, name: str, options: dict[str, Any]) -> None:
    codec, trainer = ChatCodec(model), Trainer(model, make_config(token_budget=8192))
    for step in range(1, STEPS + 1):
        groups = [played(codec, name, options, step, number) for number in range(GROUPS)]
        for group in groups:
            assert [one.failure for one in group.trajectories] == [None] * len(KINDS)
            assert split_of(group.task_key) == "train"
            returns = [one.episode_return for one in group.trajectories]
            assert max(returns) == returns[0] > min(returns)
        report = trainer.train_step(step, [(one.ticket.ticket_id, one.trajectories) for one in groups])
        assert report.updated and report.refused is None and report.num_trajectories == GROUPS * len(KINDS)
        assert all(np.isfinite(value) for name, value in report.metrics.items() if name != "kl")


@pytest.mark.parametrize("name", ["OwnProcess", "ReasoningGym", "TextArena"])
def test_a_policy_trains_on_an_environment_in_its_own_process(model: Path, name: str) -> None:
    if name in FOREIGN_PACKAGES and importlib.util.find_spec(FOREIGN_PACKAGES[name]) is None:
        pytest.skip(f"{FOREIGN_PACKAGES[name]} is not installed: pip install -e .[reasoning-gym,textarena]")
    trained(model, name, OPTIONS[name])


def test_a_policy_trains_on_an_environment_behind_http(model: Path) -> None:
    with served(server_of(SERVED, {})) as url:
        trained(model, "Http", {"url": url})
