"""The real loop: Ray, vLLM, two FSDP2 ranks, Parquet, a real Prometheus. A few steps.

That a run repeats token for token from its seed is shown in `test_stop_and_resume`, to the bit: the steps before a stop
are made from the seed alone."""

import json
import math
import re
import time

import pyarrow.compute as pc
import pytest

from actors.archive.reader import read_groups, read_metrics
from cluster.loop.state import checkpoints
from tests.e2e.replay import assert_replays
from tests.e2e.support import Run, children, small_run, summary, wait_gone
from tests.prometheus import dashboard_queries, need_prometheus, running_prometheus, unfilled_queries

SCRAPE_S = 1.0
pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def finished(tiny_policy, tmp_path_factory):
    """A run of four steps on two learner ranks, scraped while it lives."""
    need_prometheus()
    tmp_path = tmp_path_factory.mktemp("loop")
    words = small_run(tmp_path, tiny_policy, "loop", "loop.steps=4", "learner.ranks=2", "learner.num_threads=1")
    run = Run(*words)
    port = int(re.search(r":(\d+)/metrics", run.until(lambda line: "/metrics" in line))[1])
    with running_prometheus(tmp_path, port) as url:
        run.until(lambda line: line.startswith("step    3/4"))
        time.sleep(2 * SCRAPE_S)
        started, unfilled = children(run.process.pid), unfilled_queries(url)
        code = run.finish()
    return tmp_path, run, code, started, unfilled


def test_the_run_ends_well_and_says_so(finished):
    tmp_path, run, code, _, _ = finished
    assert code == 0, run.text
    assert run.lines[-1] == f"done: {tmp_path / 'loop'}"
    found = summary(tmp_path, "loop")
    assert found["steps"] == 4 and found["finished"] and found["policy_version"] >= 1
    assert found["success"]["before"]["step"] == 0 and found["success"]["after"]["step"] == 4


def test_the_terminal_shows_what_the_run_says_and_its_folder_the_rest(finished):
    tmp_path, run, *_ = finished
    foreign = [line for line in run.lines if re.search(r"pid=|WARNING|INFO|Triton|NUMA|shards|Gloo|ray", line)]
    assert not foreign
    logs = {path.stem for path in (tmp_path / "loop" / "log").glob("*.log")}
    assert logs == {"driver", "env-0", "filter", "learner-0", "learner-1", "rollout-0", "scorer"}
    assert "EngineCore" in (tmp_path / "loop" / "log" / "rollout-0.log").read_text()


def test_no_process_is_left_behind(finished):
    *_, started, _ = finished
    assert started and not wait_gone(started)


def test_every_ticket_is_accounted_for_and_archived(finished):
    tmp_path, *_ = finished
    ledger = summary(tmp_path, "loop")["ledger"]
    assert ledger["balanced"] and ledger["counts"]["issued"] == 16 == ledger["archived_groups"]
    rows = read_groups(tmp_path / "loop")
    assert rows.num_rows == 16 * 8
    assert set(rows.column("decision").to_pylist()) <= {"kept", "dropped", "refused"}
    assert all(rows.column("reason").to_pylist())


def test_at_staleness_0_every_token_was_sampled_by_the_version_that_learns_from_it(finished):
    tmp_path, *_ = finished
    metrics = [m for m in read_metrics(tmp_path / "loop") if m["step"] > 0]
    assert all(m["staleness_max"] == 0 for m in metrics)
    trained = [m for m in metrics if m["optimizer_steps"] > 0]
    assert trained and all(m["learner/mismatch_abs"] < 1e-4 for m in trained)


def test_rollouts_are_what_was_fed_and_sampled(finished):
    tmp_path, *_ = finished
    rows = read_groups(tmp_path / "loop")
    assert pc.all(pc.equal(pc.list_value_length(rows["token_ids"]), pc.list_value_length(rows["loss_mask"]))).as_py()
    for row in rows.to_pylist()[:32]:
        sampled = {i for turn in row["turns"] for i in range(turn["sample_start"], turn["sample_end"])}
        assert sampled == {i for i, masked in enumerate(row["loss_mask"]) if masked}
        assert all(
            (row["log_probs"][i] <= 0) if i in sampled else row["log_probs"][i] == 0 for i in range(len(sampled))
        )


def test_the_steps_replayed_on_two_ranks_give_the_same_parameters(finished, tiny_policy):
    tmp_path, *_ = finished
    assert_replays(tmp_path / "loop", tiny_policy, 1, 4, tmp_path)


def test_the_scorer_reports_the_proxies(finished):
    tmp_path, *_ = finished
    scored = [m for m in read_metrics(tmp_path / "loop") if m.get("first_turn/retrieval_accuracy") is not None]
    assert len(scored) == summary(tmp_path, "loop")["scorer"]["done"] >= 1, "the last step's scoring has a record too"
    for m in scored:
        assert 0 <= m["first_turn/retrieval_accuracy"] <= 1
        total = m["first_turn/mi_est"] + m["first_turn/conditional_entropy"]
        assert math.isclose(total, m["first_turn/marginal_entropy"], abs_tol=1e-6)


def test_prometheus_fills_every_panel_that_a_run_must_fill(finished):
    *_, unfilled = finished
    assert len(dashboard_queries()) > 20 and unfilled == []


def test_eval_plays_the_fixed_tasks_with_a_checkpoint(finished):
    tmp_path, *_ = finished
    run = Run("eval", str(tmp_path / "loop"), "--checkpoint", "last", "--tasks", "32", "--json")
    assert run.finish() == 0, run.text
    found = json.loads(run.lines[-1])
    after = summary(tmp_path, "loop")["success"]["after"]
    assert found["tasks"] == 32 and found["checkpoint"] == "step 4"
    assert found["success"] == after["success"], "the same weights, tasks and seeds"


def test_status_says_that_the_run_is_over(finished):
    tmp_path, *_ = finished
    run = Run("status", str(tmp_path / "loop"), "--json")
    assert run.finish() == 0 and json.loads(run.text)["state"] == "finished"


def test_the_last_step_is_checkpointed(finished):
    tmp_path, *_ = finished
    saved = checkpoints(tmp_path / "loop")
    assert saved[-1][0] == 4 and (saved[-1][1] / "hf" / "model.safetensors").is_file()
