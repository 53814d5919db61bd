"""Tasks of Harbor through the environment `Agent`: its own agent and environment play, and its own verifier pays."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from squelch.envs.agent import harbor_bridge
from squelch.kit.records.records import Group
from tests.clients.bridges import Policy, assert_paid, played, rows_of, sum_asked, three_answers
from tests.clients.support import PROGRAMS

TEST = """\
grep -q fault answer && exit
grep -qx {answer} answer && reward=1 || reward=0
echo $reward > /logs/verifier/reward.txt
"""
"""A verifier that writes no reward for a certain answer."""
HERE = {"environment": {"import_path": "harbor_here:Here"}}
ASKS = HERE | {"agent": {"import_path": "harbor_here:Asks"}}

pytestmark = pytest.mark.usefixtures("rendered_here")


def tasks(folder: Path, number: int) -> Path:
    """A folder of Harbor's tasks: sums."""
    for one in range(number):
        task = folder / "tasks" / f"sum-{one}"
        for name in ("environment", "tests"):
            (task / name).mkdir(parents=True)
        (task / "task.toml").write_text('version = "1.0"\n')
        (task / "instruction.md").write_text(f"What is {one} + 5?")
        (task / "tests" / "test.sh").write_text(TEST.format(answer=one + 5))
    return folder / "tasks"


def written(folder: Path, trial: dict[str, Any]) -> list[str]:
    """The words of the bridge's command for the folder's tasks and a trial of these settings."""
    (folder / "trial.yaml").write_text(json.dumps(trial))
    return [str(folder / "tasks"), str(folder / "trial.yaml")]


def played_here(folder: Path, trial: dict[str, Any], policy: Policy) -> Group:
    """A group of Harbor's trials."""
    tasks(folder, 40)
    return played("harbor", folder, 40, policy, *written(folder, trial))


def test_a_task_is_played_by_harbors_trial_and_paid_by_its_verifier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(PROGRAMS)  # the process of the trials finds its parts beside the run
    group = played_here(tmp_path, ASKS, three_answers())
    assert_paid(group, 1.0, "no valid reward: RewardFileNotFoundError")


@pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed, in which Terminus types")
def test_harbors_own_agent_is_trained_on_every_turn_that_it_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(PROGRAMS)

    def types(conversation: str) -> str:
        """Types until the terminal shows that it is done (what is typed while a shell starts may be lost), and says so
        twice, as it is asked to."""
        done = "written 2" in conversation
        keys = f"echo {sum_asked(conversation)} > answer; echo written $((1 + 1))\n"
        commands = [] if done else [{"keystrokes": keys, "duration": 0.5}]
        return json.dumps({"analysis": "a", "plan": "p", "commands": commands, "task_complete": done})

    group = played_here(tmp_path, HERE | {"agent": {"name": "terminus-2"}}, types)
    for one in group.trajectories:
        assert one.failure is None and one.episode_return == 1.0
        assert len(one.turns) >= 3 and not one.segments, "all of it is one conversation"


def test_what_is_no_task_or_no_trial_is_said_before_a_row_is_written(tmp_path: Path) -> None:
    def refused(trial: dict[str, Any]) -> str:
        return rows_of("harbor", *written(tmp_path, trial)).stderr

    (tmp_path / "tasks").mkdir()
    assert "holds none: no task.toml" in refused(ASKS)
    tasks(tmp_path, 1)
    assert "trial.yaml: leave task out" in refused({"task": {}})
    assert "trial.yaml: a trial has no agnet" in refused({"agnet": {}})
    assert re.search(r"trial.yaml: .*\nagent\n", refused({"agent": 3}))


@pytest.mark.parametrize(
    ("rewards", "reward"), [({"reward": 0.5, "style": 1}, 0.5), ({"tests": 1}, 1.0), ({"tests": 1, "style": 0}, None)]
)
def test_the_reward_is_the_one_of_that_name_or_the_only_one(rewards: dict[str, float], reward: float | None) -> None:
    if reward is None:
        with pytest.raises(RuntimeError, match="wrote the rewards style, tests; call one of them 'reward'"):
            harbor_bridge._reward(rewards)
    else:
        assert harbor_bridge._reward(rewards) == reward
