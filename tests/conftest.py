"""What several rooms' tests share."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

# Before anything imports torch: threads that wait must not burn the cores that other tests' processes need.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

if "SQUELCH_CACHE" not in os.environ:  # indices that tests build, theirs and their processes'
    os.environ["SQUELCH_CACHE"] = tempfile.mkdtemp(prefix="squelch-cache-")
    atexit.register(shutil.rmtree, os.environ["SQUELCH_CACHE"], ignore_errors=True)

import pytest

from envs.config import EnvironmentConfig


@pytest.fixture(scope="session")
def tiny_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A FrozenLake policy after a very short warm-up: it knows the format and little else."""
    from learner.warmup.tiny import build_tiny, recipe_for

    folder = tmp_path_factory.mktemp("tiny") / "FrozenLake"
    recipe = recipe_for("FrozenLake").model_copy(update={"tokens": 60_000})
    build_tiny(folder, EnvironmentConfig(), 0, recipe)
    return folder
