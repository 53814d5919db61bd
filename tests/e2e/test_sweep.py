"""A real sweep, interrupted in its second cell and gone on with. Its cells are the algorithms with parts of their own:
PPO, which trains a critic, and DAPO, which plays groups anew.

What the sweep itself decides is shown on made-up cells (tests/cluster/sweep), the algorithms' equations in
tests/learner."""

import json
import signal
import time
from pathlib import Path

import pyarrow.compute as pc
import pytest

from squelch.actors.archive.reader import read_groups
from squelch.cluster.config import load
from squelch.cluster.loop.persistence.checkpoint_folders import checkpoints
from tests.e2e.replay import assert_replays
from tests.e2e.support import Run, children, small_run, steps, summary, wait_gone

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1300)]
STEPS = 2


def test_an_interrupted_sweep_goes_on_with_the_cells_that_are_not_finished(tmp_path: Path, tiny_policy: Path) -> None:
    small = (f"loop.steps={STEPS}", "validation.every=0", "validation.tasks=8", "scorer.enabled=false")
    settings = small_run(tmp_path, tiny_policy, "x", *small, "filter.rho=1.0", "filter.max_refill_rounds=2")[2:]
    settings.remove("name=x")
    words = ["sweep", "frozenlake", *settings, "--grid", "learner.algorithm=ppo,dapo", "--name", "two"]
    ppo, dapo = cells = [tmp_path / "two" / f"algorithm-{name}_s0" for name in ("ppo", "dapo")]

    first = Run(*words, timeout_s=600.0)
    first.until(lambda line: line.startswith("cell 2/2 algorithm-dapo_s0 starts"))
    log = dapo / "train.log"
    while "algorithm    dapo" not in (log.read_text() if log.exists() else ""):
        assert time.monotonic() < first.deadline
        time.sleep(0.1)
    below = children(first.process.pid)
    first.signal(signal.SIGINT)
    assert first.finish() == 130 and "the same command continues them" in first.text, first.text
    assert not wait_gone(below)
    written = (ppo / "summary.json").stat().st_mtime_ns

    second = Run(*words, "--json", timeout_s=600.0)
    assert second.finish() == 0, second.text
    assert (ppo / "summary.json").stat().st_mtime_ns == written
    report = json.loads(second.lines[[line.startswith("{") for line in second.lines].index(True)])
    assert report == json.loads((tmp_path / "two" / "sweep.json").read_text()) and report["finished"]
    assert [cell["status"] for cell in report["cells"]] == ["finished", "finished"]
    assert [load(str(cell / "config.yaml")).learner.algorithm for cell in cells] == ["ppo", "dapo"]
    tasks = [set(read_groups(cell, columns=["task_seed"]).column("task_seed").to_pylist()) for cell in cells]
    assert tasks[0] == set(range(4 * STEPS)) <= tasks[1], "DAPO's refill goes on where the step's own tasks end"
    assert all(summary(cell)["ledger"]["balanced"] for cell in cells)
    assert_trains_a_critic(ppo, tiny_policy, tmp_path)
    assert_replaces_groups_without_variance(dapo, tiny_policy, tmp_path)


def assert_trains_a_critic(run_dir: Path, model: Path, tmp_path: Path) -> None:
    trained = [m for m in steps(run_dir) if m["optimizer_steps"] > 0]
    assert trained and all(m["learner/critic_grad_norm"] > 0 and m["learner/value_loss"] > 0 for m in trained)
    assert trained[0]["learner/value_mean"] == 0 and trained[-1]["learner/value_mean"] != 0
    assert all(m["learner/mismatch_abs"] < 1e-4 and m["learner/effective_sample_size"] > 0.99 for m in trained)
    step, saved = checkpoints(run_dir)[-1]
    described = json.loads((saved / "model.json").read_text())
    assert step == STEPS and described["algorithm"] == "ppo" and described["modules"]["critic"]["parameters"]
    assert_replays(run_dir, model, 1, STEPS, tmp_path)


def assert_replaces_groups_without_variance(run_dir: Path, model: Path, tmp_path: Path) -> None:
    rows = read_groups(run_dir, columns=["group_id", "decision", "score", "step"])
    kept = rows.filter(pc.equal(rows["decision"], "kept"))
    assert len(kept) and pc.min(kept["score"]).as_py() > 0
    metrics = steps(run_dir)
    assert max(m["refill_rounds"] for m in metrics) > 0, "eight groups and not a silent one: not this policy"
    assert all(m["kept_groups"] <= 4 and m["loss_scale"] == 1 for m in metrics)
    assert_replays(run_dir, model, 1, STEPS, tmp_path)
