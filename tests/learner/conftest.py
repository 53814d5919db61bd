"""Fixtures of the learner's tests: a process group of one, and a tiny model."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from squelch.learner import process_group
from tests.learner.models import make_model


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def alone() -> Iterator[None]:
    """This process as the only learner rank, on one thread."""
    torch.set_num_threads(1)
    if not dist.is_initialized():
        process_group.start(0, 1, "127.0.0.1", 0, 60, "cpu")
    yield
    process_group.stop()
