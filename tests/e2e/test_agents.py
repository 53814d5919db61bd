"""A real run of an agent, whose side calls are not trained on, and whose failures are rewarded. That its trajectories
are those of an agent without them: tests/actors/play/test_agent_episode.py."""

import json
from pathlib import Path

import pytest

from squelch.kit.archive.reader import read_groups
from squelch.kit.archive.rows import from_table
from tests.e2e.replay import assert_replays
from tests.e2e.support import Run, assert_sound, small_run, steps

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1000)]
USER = Path(__file__).parents[1] / "envs" / "agent" / "user_agent.py"
STEPS = 2
OPTIONS = {
    "call": f"{USER}:lake_with_side_calls",
    "turns": "squelch",
    "blocked_s": 300.0,
    "untrained": [{"model": "title"}],
    "failure_reward": {"Wrong": -1.0},
}


def test_of_a_run_with_side_calls_and_rewarded_failures_the_agents_own_turns_alone_are_trained_on(
    tiny_policy: Path, tmp_path: Path
) -> None:
    run = Run(
        *small_run(tmp_path, tiny_policy, "agent", f"loop.steps={STEPS}", "validation.every=0", "filter.min_groups=1"),
        *("scorer.enabled=false", "environment.name=Agent", f"environment.options={json.dumps(OPTIONS)}"),
    )
    assert run.finish() == 0, run.text
    folder = tmp_path / "agent"
    assert_sound(folder, tiny_policy)
    played = from_table(read_groups(folder))
    assert {one.failure_rewarded is not None for one in played} == {True, False}
    for one in played:
        assert one.failure is None and [aside.rule for aside in one.untrained] == ["model title"]
        assert (one.failure_rewarded is not None) == (one.episode_return == -1.0)
        sampled = sum(turn.sample_end - turn.sample_start for turn in one.turns)
        assert one.loss_mask.sum() == sampled > 0, "the side call is in no turn"
    for line in steps(folder):
        assert line["agents/untrained"] == line["trajectories"] and line["agents/failures_rewarded"] > 0
        assert line["trajectories_failed"] == 0
    calls = sum(line["agents/calls"] for line in steps(folder))
    assert calls == sum(len(one.turns) for one in played), "a side call is counted apart"
    assert any(line["optimizer_steps"] > 0 for line in steps(folder))
    assert_replays(folder, tiny_policy, 1, STEPS, tmp_path)
