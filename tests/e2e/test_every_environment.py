"""Each environment beyond the boards trains end to end: real Ray, vLLM and learner, from its shipped recipe, offline.

The tiny policy is smaller and warmed up briefly: what is shown is that tickets, groups and updates flow.
(FrozenLake does it in `test_loop`; Sokoban differs from it in its rules only.)
"""

from pathlib import Path

import pytest

from actors.archive.reader import read_groups, read_metrics
from envs.registry import environment_names
from learner.warmup.tiny import build_tiny
from learner.warmup.tiny_recipe import recipe_for
from tests.e2e.support import Run, summary

ENVIRONMENTS = ("Countdown", "DeepCoder", "MetaMathQA", "SearchQA", "WebShop")
STEPS, PROMPTS, GROUP = 2, 2, 4
WARM_UP = {
    "width": 64,
    "layers": 2,
    "heads": 2,
    "kv_heads": 1,
    "feed_forward": 128,
    "tokens": 200_000,
    "batch_tokens": 1024,
}
"""Five CPU seconds: it knows the format, and what an action looks like, at a low temperature."""
pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]


def test_all_seven_of_the_paper_are_registered():
    assert environment_names() == sorted([*ENVIRONMENTS, "FrozenLake", "Sokoban"])


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_it_trains_for_a_few_steps(name: str, tmp_path: Path):
    from cluster.config import load

    config = load(name.lower())
    model = tmp_path / "policy"
    build_tiny(model, config.environment, 0, recipe_for(name).model_copy(update=WARM_UP))
    run = Run(
        *("train", name.lower(), "name=run", f"runs_dir={tmp_path}", f"model.path={model}"),
        *(f"loop.steps={STEPS}", f"loop.prompts={PROMPTS}", f"sampling.group_size={GROUP}", "learner.ranks=1"),
        *("validation.every=0", "scorer.enabled=false", "recorder.port=0", "filter.rule=none"),
        *("rollout.kv_cache_gib=0.25", "rollout.max_num_seqs=16", "sampling.temperature=0.6"),
    )
    assert run.finish() == 0, run.text
    ledger = summary(tmp_path, "run")["ledger"]
    assert ledger["balanced"] and ledger["counts"]["issued"] == STEPS * PROMPTS == ledger["archived_groups"]
    assert ledger["counts"]["trained"] == STEPS * PROMPTS, ledger
    rows = read_groups(tmp_path / "run").to_pylist()
    assert len(rows) == STEPS * PROMPTS * GROUP
    assert {row["environment"] for row in rows} == {name}
    assert not [row["failure_cause"] for row in rows if row["failure_cause"]]
    assert all(0 < len(row["turns"]) <= config.environment.format.max_turns for row in rows)
    assert any(turn["num_actions"] for row in rows for turn in row["turns"]), "no turn held an action"
    assert [m["optimizer_steps"] > 0 for m in read_metrics(tmp_path / "run") if m["step"] > 0] == [True] * STEPS
