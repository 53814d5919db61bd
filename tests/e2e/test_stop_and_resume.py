"""A run that is stopped or killed in the middle goes on from its last checkpoint, and trains on every task once."""

import signal

import psutil
import pytest

from actors.archive import read_groups, read_metrics
from tests.e2e.support import Run, children, small_run, summary, wait_gone

pytestmark = pytest.mark.timeout(500)
SETTINGS = ("loop.steps=5", "loop.checkpoint_every=2", "validation.every=0", "scorer.enabled=false")


def assert_trained_once(run_dir):
    rows = read_groups(run_dir, columns=["group_id", "task_seed", "step"]).to_pylist()
    tasks = {row["group_id"]: row["task_seed"] for row in rows}
    assert sorted(tasks.values()) == list(range(len(tasks)))
    steps = [m["step"] for m in read_metrics(run_dir) if m["step"] > 0]
    assert steps == list(range(1, 6))


def test_sigterm_stops_after_the_step_in_training_and_resume_finishes_the_run(tiny_policy, tmp_path):
    words = small_run(tmp_path, tiny_policy, "stopped", *SETTINGS)
    run = Run(*words)
    run.until(lambda line: line.startswith("step    1/5"))
    started = children(run.process.pid)
    run.signal(signal.SIGTERM)
    assert run.finish() == 128 + signal.SIGTERM, run.text
    assert "stopped by SIGTERM after step" in run.lines[-1]
    assert not wait_gone(started)
    found = summary(tmp_path, "stopped")
    assert found["ledger"]["balanced"] and not found["finished"] and 1 <= found["steps"] < 5

    again = Run(*words, "--resume")
    again.until(lambda line: line.startswith("resumed from"))
    assert again.finish() == 0, again.text
    assert summary(tmp_path, "stopped")["steps"] == 5
    assert_trained_once(tmp_path / "stopped")


def test_a_run_killed_in_the_middle_of_training_resumes_from_its_checkpoint(tiny_policy, tmp_path):
    words = small_run(tmp_path, tiny_policy, "killed", *SETTINGS)
    run = Run(*words)
    run.until(lambda line: line.startswith("step    3/5"))
    started = [*children(run.process.pid), psutil.Process(run.process.pid)]
    run.kill()
    assert not wait_gone(started)

    again = Run(*words, "--resume")
    line = again.until(lambda line: line.startswith("resumed from"))
    assert "after step 2" in line
    assert again.finish() == 0, again.text
    found = summary(tmp_path, "killed")
    assert found["ledger"]["balanced"] and found["ledger"]["archived_groups"] == 20
    assert_trained_once(tmp_path / "killed")


def test_a_name_already_taken_and_a_resume_of_nothing_are_refused(tiny_policy, tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "metrics.jsonl").write_text("")
    taken = Run(*small_run(tmp_path, tiny_policy, "taken"))
    assert taken.finish() == 2 and "--resume" in taken.text
    nothing = Run(*small_run(tmp_path, tiny_policy, "nothing"), "--resume")
    assert nothing.finish() == 2 and "holds no run" in nothing.text and not (tmp_path / "nothing").exists()
