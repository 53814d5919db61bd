"""Each algorithm beside GRPO through the real loop, from the recipe that ships.

What a start costs is most of it, so each starts once. That a resumed critic goes on as it was, to the bit, is shown
where it costs little (tests/learner/policy/test_critic.py), a resume of the whole loop in test_stop_and_resume.py.
"""

import json

import pyarrow.compute as pc
import pytest

from actors.archive.reader import read_groups, read_metrics
from cluster.loop.state import checkpoints
from tests.e2e.replay import assert_replays
from tests.e2e.support import Run, small_run, summary

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


def train(tmp_path, model, recipe, steps, *overrides):
    """The run, which must end well, and the rows of its `metrics.jsonl`."""
    shape = (f"loop.steps={steps}", "validation.every=0", "validation.tasks=8")
    words = small_run(tmp_path, model, recipe, *shape, *overrides)
    words[1] = recipe
    run = Run(*words, "scorer.enabled=false")
    assert run.finish() == 0, run.text
    ledger = summary(tmp_path, recipe)["ledger"]
    assert ledger["balanced"]
    return run, [m for m in read_metrics(tmp_path / recipe) if m["step"] > 0]


def test_ppo_trains_a_critic_beside_the_policy_and_checkpoints_both(tiny_policy, tmp_path):
    run, metrics = train(tmp_path, tiny_policy, "frozenlake-ppo", 2)
    trained = [m for m in metrics if m["optimizer_steps"] > 0]
    assert trained and all(m["learner/critic_grad_norm"] > 0 and m["learner/value_loss"] > 0 for m in trained)
    assert trained[0]["learner/value_mean"] == 0 and trained[-1]["learner/value_mean"] != 0
    assert all(m["learner/mismatch_abs"] < 1e-4 and m["learner/effective_sample_size"] > 0.99 for m in trained)
    assert any("algorithm ppo, but learner.critic.learning_rate" in line for line in run.lines)
    step, saved = checkpoints(tmp_path / "frozenlake-ppo")[-1]
    described = json.loads((saved / "model.json").read_text())
    assert step == 2 and described["algorithm"] == "ppo" and described["others"]["critic"]
    assert_replays(tmp_path / "frozenlake-ppo", tiny_policy, 1, 2, tmp_path)


def test_dapo_replaces_groups_without_variance_and_learns_from_none(tiny_policy, tmp_path):
    _, metrics = train(tmp_path, tiny_policy, "frozenlake-dapo", 1, "filter.max_refill_rounds=2")
    rows = read_groups(tmp_path / "frozenlake-dapo", columns=["group_id", "decision", "score", "step"])
    kept = rows.filter(pc.equal(rows["decision"], "kept"))
    assert len(kept) and pc.min(kept["score"]).as_py() > 0
    assert max(m["refill_rounds"] for m in metrics) > 0, "eight groups and not a silent one: not this policy"
    assert all(m["kept_groups"] <= 4 and m["loss_scale"] == 1 for m in metrics)
    assert_replays(tmp_path / "frozenlake-dapo", tiny_policy, 1, 1, tmp_path)


def test_dr_grpo_divides_by_the_longest_episode_and_a_collapse_ends_it_early(tiny_policy, tmp_path):
    collapsed = ("validation.every=1", "validation.early_stop=paper", "validation.collapse_threshold=1.0")
    run, metrics = train(tmp_path, tiny_policy, "frozenlake-dr-grpo", 9, *collapsed)
    assert "algorithm dr_grpo" in run.lines
    trained = [m for m in metrics if m["optimizer_steps"] > 0]
    assert trained and all(0 < m["learner/advantage_std"] <= 0.75 for m in trained), "returns of 0 and 1, not divided"
    reason = "early stop: validation success below 100% at 5 validations in a row"
    assert [m["step"] for m in metrics] == [1, 2, 3, 4], "with the one before training, five validations"
    assert summary(tmp_path, "frozenlake-dr-grpo")["stopped"] == reason
    assert "normaliser_tokens: 240" in (tmp_path / "frozenlake-dr-grpo" / "config.yaml").read_text()
