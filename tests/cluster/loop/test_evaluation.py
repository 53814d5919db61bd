"""Which weights `squelch eval` plays."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from squelch.cluster.config import dump, load
from squelch.cluster.loop import evaluation
from squelch.cluster.loop.persistence.state import LoopState
from squelch.kit.base.errors import UserError
from squelch.kit.process.signals import Interrupted


@pytest.mark.parametrize(("best", "played"), [(20, "step 20"), (0, "initial"), (-1, "step 40"), (30, "step 40")])
def test_the_best_weights_are_those_of_the_best_validation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, best: int, played: str
) -> None:
    saved = [(step, tmp_path / f"checkpoints/step-{step}") for step in (20, 40)]
    monkeypatch.setattr(evaluation, "checkpoints", lambda run_dir: saved)
    monkeypatch.setattr(
        evaluation, "read_state", lambda folder: LoopState(watchers={"validation": {"best_step": best}})
    )
    monkeypatch.setattr(evaluation, "prepare_model", lambda config, say: tmp_path / "initial")
    monkeypatch.setattr(evaluation, "check_model_folder", lambda folder: None)
    said: list[str] = []
    folder, step = evaluation._weights(load("frozenlake"), tmp_path, "best", said.append, lambda key: None)
    assert step == played and played.removeprefix("step ") in str(folder)
    assert len(said) == (best != 20), "a checkpoint that is not the best is reported"
    assert best != 30 or "because step-30 is missing" in said[0]


@pytest.mark.parametrize("checkpoint", ["²", "٢٠", "-20", "20 ", "", "9" * 5000])
def test_a_checkpoint_that_is_no_step_is_refused(tmp_path: Path, monkeypatch, checkpoint: str) -> None:
    """Found by a reviewer: a superscript digit ended in a traceback."""
    monkeypatch.setattr(evaluation, "checkpoints", lambda run_dir: [(20, tmp_path / "checkpoints/step-20")])
    with pytest.raises(UserError, match=r"has best, last, initial and steps \[20\]"):
        evaluation._weights(load("frozenlake"), tmp_path, checkpoint, lambda text: None, lambda key: None)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_an_evaluation_once_its_actors_have_stopped(tmp_path: Path, monkeypatch, number) -> None:
    happened: list[str] = []

    async def play(*_: object) -> None:
        os.kill(os.getpid(), number)
        try:
            await asyncio.sleep(30.0)
        finally:
            happened.append("stopped")

    monkeypatch.setattr(evaluation, "_play", play)
    monkeypatch.setattr(evaluation, "_weights", lambda *_: (tmp_path, "step 3"))
    monkeypatch.setattr(evaluation, "connect", lambda *_, joined, **__: joined())
    monkeypatch.setattr(evaluation, "disconnect", lambda: happened.append("left"))
    monkeypatch.setattr(evaluation, "ray_watched", lambda _: nullcontext(happened.append("watched")))
    (tmp_path / "config.yaml").write_text(dump(load("frozenlake")))
    with pytest.raises(Interrupted, match=f"^{number.name}$"):
        evaluation.evaluate(tmp_path, "best", 4, 0.5, False, happened.append)
    give_up = time.monotonic() + 180
    while (said := "stopping; again to stop now") not in happened:  # by a thread of its own
        assert time.monotonic() < give_up, happened
        time.sleep(0.01)
    assert [one for one in happened if one != said] == ["watched", "stopped", "left"]
