"""A folder of the miniature policy, built once."""

from pathlib import Path

import pytest

from squelch.actors.play.codec import ChatCodec
from squelch.learner.warmup.tiny import build_tiny
from tests.learner.warmup.small import LAKE, SMALL


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "policy"
    assert not build_tiny(path, LAKE, seed=3, recipe=SMALL).reused
    return path


@pytest.fixture(scope="session")
def codec(folder: Path) -> ChatCodec:
    return ChatCodec(folder)
