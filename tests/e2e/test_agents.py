"""Real runs of an agent, whose side calls are not trained on, and whose failures are rewarded."""

import json
from pathlib import Path

import numpy as np
import pytest

from squelch.kit.archive.reader import read_events, read_groups
from squelch.kit.archive.rows import from_table
from tests.e2e.support import Run, assert_sound, small_run, steps

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1000)]
USER = Path(__file__).parents[1] / "envs" / "agent" / "user_agent.py"
STEPS = 2
RULES = {"untrained": [{"model": "title"}], "failure_reward": {"Wrong": -1.0}}


def trained(tmp_path: Path, model: Path, function: str, **more: object) -> Path:
    """The folder of a run of this function."""
    options = {"call": f"{USER}:{function}", "turns": "squelch", "blocked_s": 300.0, **more}
    run = Run(
        *small_run(tmp_path, model, function, f"loop.steps={STEPS}", "validation.every=0"),
        "scorer.enabled=false",
        *("environment.name=Agent", f"environment.options={json.dumps(options)}", "filter.min_groups=1"),
    )
    assert run.finish() == 0, run.text
    return tmp_path / function


def test_side_calls_and_rewarded_failures_train_to_the_bit_what_an_agent_without_them_does(
    tiny_policy: Path, tmp_path: Path
) -> None:
    bare = trained(tmp_path, tiny_policy, "lake")
    mixed = trained(tmp_path, tiny_policy, "lake_with_side_calls", **RULES)
    sums, others = (
        [event["checksum"] for event in read_events(folder) if event["name"] == "weights"] for folder in (bare, mixed)
    )
    assert sums == others and len(set(sums)) > 1
    assert_sound(mixed, tiny_policy)
    for mine, theirs in zip(from_table(read_groups(bare)), from_table(read_groups(mixed)), strict=True):
        assert mine.failure is None and theirs.failure is None and mine.untrained == ()
        for name in ("token_ids", "loss_mask", "log_probs"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))
        assert (mine.turns, mine.segments, mine.success) == (theirs.turns, theirs.segments, theirs.success)
        assert [one.rule for one in theirs.untrained] == ["model title"]
        assert (theirs.failure_rewarded is not None) == (mine.episode_return == -1.0)
    for mine, theirs in zip(steps(bare), steps(mixed), strict=True):
        own = {name for name in mine if name.split("/")[0] not in ("seconds", "agents", "system")}
        same = {name for name in own if name in theirs and np.array_equal(mine[name], theirs[name])}
        wanted = {
            "success",
            "reward_variance_mean",
            "tokens/sampled",
            "tokens/total",
            "trajectories",
            "rollout_entropy",
        }
        assert wanted <= same, wanted - same
        assert theirs["agents/untrained"] == theirs["trajectories"] and theirs["agents/failures_rewarded"] > 0
        assert theirs["agents/calls"] == mine["agents/calls"] and theirs["trajectories_failed"] == 0
