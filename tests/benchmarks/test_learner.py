"""The padded learner of the learner's benchmark is the learner."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.learner import work
from squelch.learner import process_group
from squelch.learner.config import LearnerConfig
from squelch.learner.trainer import Trainer


@pytest.fixture
def one_rank() -> Iterator[None]:
    process_group.start(0, 1, "127.0.0.1", 0, 60, "cpu")
    yield
    process_group.stop()


@pytest.mark.usefixtures("one_rank")
def test_the_padded_learner_computes_what_the_packed_one_does(tmp_path: Path) -> None:
    groups = work.single_turn(2, 4, 12, 6, tmp_path)
    packed = Trainer(tmp_path, LearnerConfig())
    padded = work.PaddedTrainer(tmp_path, LearnerConfig(share_openings=False))
    ours, theirs = (trainer.train_step(1, groups).metrics for trainer in (packed, padded))
    assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-5)
    assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-3)
