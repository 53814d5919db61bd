"""The learner's benchmark says why a step with fewer tokens is off the line through the origin, and its padded learner
is the learner."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.learner import work
from benchmarks.learner.step import make_groups, off_the_line
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


@pytest.mark.usefixtures("one_rank")
def test_groups_of_the_benchmark_are_on_policy(tmp_path: Path) -> None:
    work.single_turn(1, 2, 4, 2, tmp_path)
    trainer = Trainer(tmp_path, LearnerConfig())
    ((_, members),) = make_groups(trainer, 16)
    assert len(members) == 16 and all((t.log_probs[t.loss_mask] < 0).all() for t in members)
    assert np.isfinite(trainer.train_step(1, [("000", members)]).metrics["loss"])


def test_what_is_off_the_line_is_less_sharing_and_time_a_token():
    """A quarter of the tokens, three tenths of those fed, two fifths of the time."""
    found = off_the_line(seconds=0.4, tokens=0.25, fed=0.3)
    assert found["off_the_line"] == pytest.approx(0.6)
    assert found["by_less_sharing"] == pytest.approx(0.2)
    assert found["by_time_a_token_fed"] == pytest.approx(0.4)


def test_half_the_tokens_in_half_the_time_are_on_the_line():
    assert off_the_line(0.5, 0.5, 0.5) == pytest.approx(dict.fromkeys(off_the_line(1, 1, 1), 0.0))
