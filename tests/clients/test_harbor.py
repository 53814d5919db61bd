"""Tasks of Harbor through the environment `Agent`: its own agent and environment play, and its own verifier pays."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from squelch.actors.messages import Completion, GenerationRequest
from squelch.actors.play.player import Generate
from squelch.envs.agent import harbor_bridge
from squelch.envs.config import EnvironmentConfig
from squelch.kit.records.failures import FailureCause
from squelch.kit.records.records import Group
from tests.actors.play.test_agent_episode import play, ticket
from tests.clients.support import PROGRAMS, ROOT, interpreter_of
from tests.clients.test_clients import codec

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


def written(python: Path, folder: Path, trial: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    (folder / "trial.yaml").write_text(json.dumps(trial))
    command = [sys.executable, "-m", "squelch.envs.agent.harbor_bridge", str(python), str(folder / "tasks")]
    return subprocess.run(
        [*command, str(folder / "trial.yaml")], cwd=ROOT, capture_output=True, timeout=180, check=False, text=True
    )


def said_by_a_model_that(does: Callable[[str], str]) -> Generate:
    """Answers each call with what `does` makes of the conversation."""

    async def generate(worker: str, request: GenerationRequest) -> Completion:
        text = does(codec().backend.decode(request.prompt_ids.tolist()))
        ids = np.append(codec().encode(text), np.int32(codec().stop_ids[0]))
        return Completion(request.request_id, ids, np.full(len(ids), -0.5, np.float32), "stop", 0, 0)

    return generate


def sum_asked(conversation: str) -> int:
    return sum(map(int, re.findall(r"What is (\d+) \+ (\d+)\?", conversation)[-1]))


def played(folder: Path, trial: dict[str, Any], does: Callable[[str], str]) -> Group:
    """A group of Harbor's trials."""
    python = interpreter_of("harbor")
    tasks(folder, 40)
    rows = written(python, folder, trial)
    assert rows.returncode == 0, rows.stderr[-3000:]
    assert len(rows.stdout.splitlines()) == 40
    (folder / "tasks.jsonl").write_text(rows.stdout)
    bridge = "squelch.envs.agent.harbor_bridge:play"
    options = {"data": str(folder / "tasks.jsonl"), "python": str(python), "call": bridge}
    environment = EnvironmentConfig(name="Agent", options=options)
    (group,) = play(codec(), said_by_a_model_that(does), environment, ticket("Agent", options, 3))
    return group


def test_a_task_is_played_by_harbors_trial_and_paid_by_its_verifier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(PROGRAMS)  # the process of the trials finds its parts beside the run
    turns = itertools.count()
    group = played(
        tmp_path, ASKS, lambda asked: (str(sum_asked(asked)), "I cannot say how much.", "fault")[next(turns) % 3]
    )
    told = set()
    for one in group.trajectories:
        said = codec().text(one.token_ids[one.loss_mask])
        if said == "fault":
            assert one.failure is not None and one.failure.cause is FailureCause.AGENT_ERROR
            assert "no valid reward: RewardFileNotFoundError" in one.failure.detail, "a fault is no reward of 0"
        else:
            assert one.failure is None and one.episode_return == float(said.isdigit())
        told.add("right" if said.isdigit() else said)
    assert len(told) == 3


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

    group = played(tmp_path, HERE | {"agent": {"name": "terminus-2"}}, types)
    for one in group.trajectories:
        assert one.failure is None and one.episode_return == 1.0
        assert len(one.turns) >= 3 and not one.segments, "all of it is one conversation"


def test_what_is_no_task_or_no_trial_is_said_before_a_row_is_written(tmp_path: Path) -> None:
    python = interpreter_of("harbor")
    (tmp_path / "tasks").mkdir()
    assert "holds none: no task.toml" in written(python, tmp_path, ASKS).stderr
    tasks(tmp_path, 1)
    assert "trial.yaml: leave task out" in written(python, tmp_path, {"task": {}}).stderr
    assert "trial.yaml: a trial has no agnet" in written(python, tmp_path, {"agnet": {}}).stderr
    assert re.search(r"trial.yaml: .*\nagent\n", written(python, tmp_path, {"agent": 3}).stderr)


@pytest.mark.parametrize(
    ("rewards", "reward"), [({"reward": 0.5, "style": 1}, 0.5), ({"tests": 1}, 1.0), ({"tests": 1, "style": 0}, None)]
)
def test_the_reward_is_the_one_of_that_name_or_the_only_one(rewards: dict[str, float], reward: float | None) -> None:
    if reward is None:
        with pytest.raises(RuntimeError, match="wrote the rewards style, tests; call one of them 'reward'"):
            harbor_bridge._reward(rewards)
    else:
        assert harbor_bridge._reward(rewards) == reward
