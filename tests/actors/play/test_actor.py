"""The environment actor without Ray: what it checks before the first ticket comes."""

from __future__ import annotations

from pathlib import Path

import pytest

from squelch.actors.config import EnvironmentActorConfig, SamplingConfig
from squelch.actors.play.actor import EnvironmentActor
from squelch.envs.config import EnvironmentConfig
from squelch.envs.wording import PromptName
from tests.actors.play.test_codec import byte_level_bpe, save_model


def actor(folder: Path, prompt: PromptName) -> EnvironmentActor:
    chosen = EnvironmentConfig(options={"observation_format": "grid_coord"}, prompt=prompt)
    model = save_model(folder, byte_level_bpe())
    return EnvironmentActor("environment-0", model, chosen, SamplingConfig(), EnvironmentActorConfig(), 2048)


def test_the_environment_that_an_actor_tries_at_its_start_is_in_the_style_that_is_set(tmp_path: Path) -> None:
    actor(tmp_path, "natural")._try_environment()
    with pytest.raises(ValueError, match=r"needs environment\.prompt=natural"):
        actor(tmp_path, "tiny")._try_environment()
