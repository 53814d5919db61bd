"""Which weights `squelch eval` plays."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from squelch.cluster.config import dump, load
from squelch.cluster.loop import evaluation
from squelch.cluster.loop.evaluation import Asked, Played, Weights
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
    found = evaluation.weights_of(load("frozenlake"), tmp_path, "best", said.append, lambda key: None)
    assert found.name == played and played.removeprefix("step ") in str(found.folder)
    assert found.step == (0 if played == "initial" else int(played.removeprefix("step ")))
    assert len(said) == (best != 20), "a checkpoint that is not the best is reported"
    assert best != 30 or "because step-30 is missing" in said[0]


@pytest.mark.parametrize("checkpoint", ["²", "٢٠", "-20", "20 ", "", "9" * 5000])
def test_a_checkpoint_that_is_no_step_is_refused(tmp_path: Path, monkeypatch, checkpoint: str) -> None:
    """Found by a reviewer: a superscript digit ended in a traceback."""
    monkeypatch.setattr(evaluation, "checkpoints", lambda run_dir: [(20, tmp_path / "checkpoints/step-20")])
    with pytest.raises(UserError, match=r"has best, last, initial and steps \[20\]"):
        evaluation.weights_of(load("frozenlake"), tmp_path, checkpoint, lambda text: None, lambda key: None)


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
    monkeypatch.setattr(evaluation, "weights_of", lambda *_: Weights(tmp_path, "step 3", 3))
    monkeypatch.setattr(evaluation, "connect", lambda *_, joined, **__: joined())
    monkeypatch.setattr(evaluation, "disconnect", lambda: happened.append("left"))
    monkeypatch.setattr(evaluation, "ray_watched", lambda _: nullcontext(happened.append("watched")))
    (tmp_path / "config.yaml").write_text(dump(load("frozenlake")))
    with pytest.raises(Interrupted, match=f"^{number.name}$"):
        evaluation.evaluate(Asked(["best"], 4), tmp_path, happened.append)
    give_up = time.monotonic() + 180
    while (said := "stopping; again to stop now") not in happened:  # by a thread of its own
        assert time.monotonic() < give_up, happened
        time.sleep(0.01)
    assert [one for one in happened if one != said] == ["watched", "stopped", "left"]


def played(*shares: float, samples: int = 1, tasks: int = 200) -> list[Played]:
    """One evaluation for each share of samples that solve their task; the tasks of a lower share are among those of a
    higher."""
    rng = np.random.default_rng(0)
    luck = rng.random((tasks, samples))
    return [Played(luck < share, [], []) for share in shares]


def evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: list[Played], asked: Asked, recipe: str = ""
) -> tuple[list[str], list[Path]]:
    """What an evaluation of these results says, and the model folders that it played."""
    said, folders, left = list[str](), list[Path](), iter(found)

    async def play(config: object, model_dir: Path, *_: object) -> Played:
        folders.append(model_dir)
        return next(left)

    monkeypatch.setattr(evaluation, "_play", play)
    monkeypatch.setattr(evaluation, "weights_of", lambda config, run, one, *_: Weights(tmp_path / one, one, None))
    monkeypatch.setattr(evaluation, "connect", lambda *_, joined, **__: joined())
    monkeypatch.setattr(evaluation, "disconnect", lambda: None)
    monkeypatch.setattr(evaluation, "ray_watched", lambda _: nullcontext())
    (tmp_path / "config.yaml").write_text(dump(load("frozenlake")))
    assert evaluation.evaluate(asked, recipe or tmp_path, said.append) == 0
    return said, folders


def test_several_checkpoints_play_the_same_tasks_in_one_table_with_the_paired_gain(tmp_path, monkeypatch) -> None:
    asked = Asked(["initial", "step 20", "other"], tasks=200)
    said, folders = evaluated(tmp_path, monkeypatch, played(0.2, 0.5, 0.2), asked)
    assert [folder.name for folder in folders] == ["initial", "step 20", "other"]
    head, first, second, third = said[-1].splitlines()
    assert head.split("  ")[-1].strip() == "gain over initial" and first.endswith("-")
    low, high = (float(one.strip("[],")) for one in second.split()[-2:])
    assert second.startswith("step 20") and 0.15 < low < 0.255 < high < 0.35
    assert "+0.000 [-0." in third, "the same policy gains nothing, with an interval"


def test_several_samples_of_a_task_give_pass_at_k(tmp_path, monkeypatch, capsys) -> None:
    asked = Asked(["best"], tasks=200, samples=4)
    (said,), _ = evaluated(tmp_path, monkeypatch, played(0.5, samples=4), asked)
    assert "200 tasks x 4 samples" in said and "pass@2 0.7" in said and "pass@4 0.9" in said
    evaluated(tmp_path, monkeypatch, played(0.5, samples=4), Asked(["best"], 200, samples=4, as_json=True))
    found = json.loads(capsys.readouterr().out)
    assert found["samples"] == 4 and set(found["pass_at"]) == {"1", "2", "4"}
    assert found["pass_at"]["1"][0] == pytest.approx(found["success"])
    assert found["low"] < found["success"] < found["high"]


def test_a_recipes_tasks_are_played_without_a_run(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (said,), _ = evaluated(tmp_path, monkeypatch, played(0.5), Asked(["initial"], tasks=200), "sokoban")
    assert said.startswith("sokoban at initial: success 0.4") and Path("runs/sokoban-eval").is_dir()


def test_a_checkpoint_may_be_the_folder_of_a_model_or_of_another_runs_checkpoint(tmp_path, monkeypatch) -> None:
    (tmp_path / "step-3" / "hf").mkdir(parents=True)
    monkeypatch.setattr(evaluation, "prepare_model", lambda config, say: Path(config.model.path))
    for given, played_from in ((tmp_path / "step-3", tmp_path / "step-3" / "hf"), (tmp_path, tmp_path)):
        found = evaluation.weights_of(load("frozenlake"), tmp_path, str(given), print, lambda key: None)
        assert (found.folder, found.name, found.step) == (played_from, str(given), None)


def test_a_runs_own_checkpoint_comes_before_a_folder_of_its_name(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "20").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(evaluation, "checkpoints", lambda run_dir: [(20, tmp_path / "checkpoints/step-20")])
    monkeypatch.setattr(evaluation, "check_model_folder", lambda folder: None)
    found = evaluation.weights_of(load("frozenlake"), tmp_path, "20", print, lambda key: None)
    assert (found.name, found.step) == ("step 20", 20)
