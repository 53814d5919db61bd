"""A real sweep, interrupted in its cell and gone on with. The cell is PPO's, which trains a critic.

What the sweep itself decides is shown on made-up cells (tests/cluster/sweep), the algorithms' equations in
tests/learner."""

import json
import signal
import time
from pathlib import Path

import pytest

from squelch.cluster.config import load
from squelch.cluster.loop.persistence.checkpoint_folders import checkpoints
from squelch.kit.archive.reader import read_groups
from tests.e2e.replay import assert_replays
from tests.e2e.support import Run, children, small_run, steps, summary, wait_gone

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1000)]
STEPS = 2


def test_an_interrupted_sweep_goes_on_and_is_done_once(tmp_path: Path, tiny_policy: Path) -> None:
    small = (f"loop.steps={STEPS}", "validation.every=0", "validation.tasks=8", "scorer.enabled=false")
    settings = small_run(tmp_path, tiny_policy, "x", *small, "filter.rho=1.0")[2:]
    settings.remove("name=x")
    words = ["sweep", "frozenlake", *settings, "--grid", "learner.algorithm=ppo", "--name", "one"]
    cell = tmp_path / "one" / "algorithm-ppo_s0"

    first = Run(*words, timeout_s=600.0)
    first.until(lambda line: line.startswith("cell 1/1 algorithm-ppo_s0 starts"))
    log = cell / "train.log"
    while "algorithm    ppo" not in (log.read_text() if log.exists() else ""):
        assert time.monotonic() < first.deadline
        time.sleep(0.1)
    below = children(first.process.pid)
    first.signal(signal.SIGINT)
    assert first.finish() == 130 and "the same command continues them" in first.text, first.text
    assert not wait_gone(below)

    second = Run(*words, "--json", timeout_s=600.0)
    assert second.finish() == 0, second.text
    report = json.loads(second.lines[[line.startswith("{") for line in second.lines].index(True)])
    assert report == json.loads((tmp_path / "one" / "sweep.json").read_text()) and report["finished"]
    assert [found["status"] for found in report["cells"]] == ["finished"]
    assert load(str(cell / "config.yaml")).learner.algorithm == "ppo" and summary(cell)["ledger"]["balanced"]
    tasks = read_groups(cell, columns=["task_seed"]).column("task_seed").to_pylist()
    assert set(tasks) == set(range(4 * STEPS))
    written = (cell / "summary.json").stat().st_mtime_ns
    again = Run(*words)
    assert again.finish() == 0 and (cell / "summary.json").stat().st_mtime_ns == written, again.text
    assert_trains_a_critic(cell, tiny_policy, tmp_path)


def assert_trains_a_critic(run_dir: Path, model: Path, tmp_path: Path) -> None:
    trained = [m for m in steps(run_dir) if m["optimizer_steps"] > 0]
    assert trained and all(m["learner/critic_grad_norm"] > 0 and m["learner/value_loss"] > 0 for m in trained)
    assert trained[0]["learner/value_mean"] == 0 and trained[-1]["learner/value_mean"] != 0
    assert all(m["learner/mismatch_abs"] < 1e-4 and m["learner/effective_sample_size"] > 0.99 for m in trained)
    step, saved = checkpoints(run_dir)[-1]
    described = json.loads((saved / "model.json").read_text())
    assert step == STEPS and described["algorithm"] == "ppo" and described["modules"]["critic"]["parameters"]
    assert_replays(run_dir, model, 1, STEPS, tmp_path)
