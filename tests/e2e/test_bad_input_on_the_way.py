"""What can only be found wrong once the run is under way still ends in one paragraph and code 2, with nothing left."""

import psutil
import pytest

from cluster.loop.state import checkpoints, read_state
from tests.e2e.support import Run, children, small_run, wait_gone

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


def test_a_token_budget_below_one_trajectory_is_named_and_no_process_is_left(tiny_policy, tmp_path):
    settings = ("learner.token_budget=64", "validation.every=0", "scorer.enabled=false")
    run = Run(*small_run(tmp_path, tiny_policy, "bad", *settings))
    run.until(lambda line: line.startswith("ready"))
    started = children(run.process.pid)
    assert run.finish() == 2, run.text
    assert run.lines[-1].startswith("squelch: ") and "token_budget" in run.lines[-1]
    assert not wait_gone(started)


def test_a_disk_that_fills_up_during_a_checkpoint_names_it_and_leaves_the_one_before_whole(tiny_policy, tmp_path):
    settings = (
        "validation.every=0",
        "scorer.enabled=false",
        "loop.steps=9",
        "loop.checkpoint_every=1",
        "learner.ranks=2",
    )
    run = Run(*small_run(tmp_path, tiny_policy, "full", *settings))
    run.until(lambda line: line.startswith("step    2/"))  # the checkpoint of step 1 is whole by now
    started = children(run.process.pid)
    ranks = [process for process in started if "LearnerRank" in " ".join(process.cmdline())]
    assert ranks
    for rank in ranks:  # the kernel refuses to let its files grow past this, as a full disk does
        rank.rlimit(psutil.RLIMIT_FSIZE, (200_000, 200_000))
    assert run.finish() == 2, run.text
    last = run.lines[-1]
    saved = checkpoints(tmp_path / "full")
    failed = tmp_path / "full" / "checkpoints" / f"step-{saved[-1][0] + 1}"
    assert last.startswith(f"squelch: checkpoint {failed.resolve()} could not be written")
    assert sorted(path.name for path in failed.parent.iterdir()) == sorted(path.name for _, path in saved)
    assert read_state(saved[-1][1]).clock == saved[-1][0]
    assert "died" not in run.text  # nothing was being played any more when the workers were stopped
    assert not wait_gone(started)
