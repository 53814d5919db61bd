"""Tasks of other frameworks through the environment `Agent` and a bridge of `squelch.envs.agent`; a script answers."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from squelch.actors.messages import Completion, GenerationRequest
from squelch.actors.play.player import Generate
from squelch.envs.config import EnvironmentConfig
from squelch.kit.records.failures import FailureCause
from squelch.kit.records.records import Group
from tests.actors.play.test_agent_episode import play, ticket
from tests.clients.support import ROOT, codec, interpreter_of

Policy = Callable[[str], str]
"""What is said to a conversation."""


def rows_of(framework: str, *words: str) -> subprocess.CompletedProcess[str]:
    """The command that writes a framework's tasks as rows, after its end."""
    command = [sys.executable, "-m", f"squelch.envs.agent.{framework}_bridge", str(interpreter_of(framework)), *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, timeout=180, check=False, text=True)


def played(framework: str, folder: Path, num_tasks: int, policy: Policy, *words: str) -> Group:
    """A group of three trajectories of one of the framework's tasks, which are so many."""
    rows = rows_of(framework, *words)
    assert rows.returncode == 0, rows.stderr[-3000:]
    assert len(rows.stdout.splitlines()) == num_tasks
    (folder / "tasks.jsonl").write_text(rows.stdout)
    call = f"squelch.envs.agent.{framework}_bridge:play"
    options = {"data": str(folder / "tasks.jsonl"), "python": str(interpreter_of(framework)), "call": call}
    environment = EnvironmentConfig(name="Agent", options=options)
    (group,) = play(codec(), _said_by(policy), environment, ticket("Agent", options, 3))
    return group


def _said_by(policy: Policy) -> Generate:
    async def generate(worker: str, request: GenerationRequest) -> Completion:
        text = policy(codec().backend.decode(request.prompt_ids.tolist()))
        ids = np.append(codec().encode(text), np.int32(codec().stop_ids[0]))
        return Completion(request.request_id, ids, np.full(len(ids), -0.5, np.float32), "stop", 0, 0)

    return generate


def sum_asked(conversation: str) -> int:
    """The sum that a conversation asks for last."""
    return sum(map(int, re.findall(r"What is (\d+) \+ (\d+)\?", conversation)[-1]))


def three_answers() -> Policy:
    """Says in turn the right sum, a wrong answer, and the one that breaks a reward."""
    turns = itertools.count()
    return lambda asked: (str(sum_asked(asked)), "I cannot say how much.", "fault")[next(turns) % 3]


def assert_paid(group: Group, right: float, fault: str) -> None:
    """The right one of `three_answers` earned so much, the wrong one nothing, and the last one failed with `fault`."""
    told = set()
    for one in group.trajectories:
        said = codec().text(one.token_ids[one.loss_mask])
        if said == "fault":
            assert one.failure is not None and one.failure.cause is FailureCause.AGENT_ERROR
            assert fault in one.failure.detail, "a fault is no reward of 0"
        else:
            assert one.failure is None and one.episode_return == pytest.approx(right if said.isdigit() else 0.0)
        told.add("right" if said.isdigit() else said)
    assert len(told) == 3
