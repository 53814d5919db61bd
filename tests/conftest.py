"""What several rooms' tests share."""

from pathlib import Path

import pytest

from envs.config import EnvironmentConfig


@pytest.fixture(scope="session")
def tiny_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A FrozenLake policy after a very short warm-up: it knows the format and little else."""
    from learner.tiny import build_tiny, recipe_for

    folder = tmp_path_factory.mktemp("tiny") / "FrozenLake"
    recipe = recipe_for("FrozenLake").model_copy(update={"tokens": 60_000})
    build_tiny(folder, EnvironmentConfig(), 0, recipe)
    return folder
