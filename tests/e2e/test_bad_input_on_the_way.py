"""What can only be found wrong once the run is under way still ends in one paragraph and code 2, with nothing left."""

import pytest

from tests.e2e.support import Run, children, small_run, wait_gone

pytestmark = pytest.mark.timeout(300)


def test_a_token_budget_below_one_trajectory_is_named_and_no_process_is_left(tiny_policy, tmp_path):
    settings = ("learner.token_budget=64", "validation.every=0", "scorer.enabled=false")
    run = Run(*small_run(tmp_path, tiny_policy, "bad", *settings))
    run.until(lambda line: line.startswith("ready"))
    started = children(run.process.pid)
    assert run.finish() == 2, run.text
    assert run.lines[-1].startswith("squelch: ") and "token_budget" in run.lines[-1]
    assert not wait_gone(started)
