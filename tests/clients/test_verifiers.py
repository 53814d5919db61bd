"""A `Taskset` of verifiers 0.4 through the environment `Agent`: its own harness plays, and its own trace pays."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from squelch.actors.messages import Completion, GenerationRequest
from squelch.actors.play.player import Generate
from squelch.envs.config import EnvironmentConfig
from squelch.kit.records.failures import FailureCause
from tests.actors.play.test_agent_episode import play, ticket
from tests.clients.support import ROOT, interpreter_of
from tests.clients.test_clients import codec

EXAMPLES = ROOT / "docs" / "examples"
FAULTY = """
import sys
sys.path.insert(0, {examples!r})
from verifiers_sums import Sum, Sums, SumsConfig, vf

class Faulty(Sum):
    @vf.reward
    async def unmoved(self, trace: vf.Trace) -> float:
        return 0.0 / (trace.last_reply != "fault")

class FaultySums(vf.Taskset[Faulty, SumsConfig]):
    def load(self):
        return [Faulty(one.data, self.config.task) for one in Sums.load(self)]
"""
"""The guide's example with one more reward, which a certain answer breaks."""

pytestmark = pytest.mark.usefixtures("rendered_here")


def options_of(taskset: str, folder: Path) -> dict[str, Any]:
    """The environment's options for a taskset, whose tasks the bridge's command writes."""
    python = str(interpreter_of("verifiers"))
    command = [sys.executable, "-m", "squelch.envs.agent.verifiers_bridge", python, taskset]
    rows = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=180, check=False, text=True)
    assert rows.returncode == 0, rows.stderr[-3000:]
    (folder / "tasks.jsonl").write_text(rows.stdout)
    bridge = "squelch.envs.agent.verifiers_bridge:play"
    return {"data": str(folder / "tasks.jsonl"), "python": python, "call": bridge}


def answering() -> Generate:
    """Answers calls in turn with the right sum, a wrong answer, and the one that breaks a reward."""
    turns = itertools.count()

    async def generate(worker: str, request: GenerationRequest) -> Completion:
        asked = codec().backend.decode(request.prompt_ids.tolist())
        numbers = re.findall(r"What is (\d+) \+ (\d+)\?", asked)[-1]
        text = (str(sum(map(int, numbers))), "I cannot say how much.", "fault")[next(turns) % 3]
        ids = np.append(codec().encode(text), np.int32(codec().stop_ids[0]))
        return Completion(request.request_id, ids, np.full(len(ids), -0.5, np.float32), "stop", 0, 0)

    return generate


def test_a_taskset_is_played_by_its_harness_and_paid_by_its_trace(tmp_path: Path) -> None:
    (tmp_path / "faulty.py").write_text(FAULTY.format(examples=str(EXAMPLES)))
    options = options_of(f"{tmp_path / 'faulty.py'}:FaultySums", tmp_path)
    assert len((tmp_path / "tasks.jsonl").read_text().splitlines()) == 64
    environment = EnvironmentConfig(name="Agent", options=options)
    (group,) = play(codec(), answering(), environment, ticket("Agent", options, 3))
    told = set()
    for one in group.trajectories:
        said = codec().text(one.token_ids[one.loss_mask])
        if said == "fault":
            assert one.failure is not None and one.failure.cause is FailureCause.AGENT_ERROR
            assert "ZeroDivisionError" in one.failure.detail, "a fault is no reward of 0"
        else:
            assert one.failure is None and one.episode_return == pytest.approx(1.1 if said.isdigit() else 0.0)
        told.add("right" if said.isdigit() else said)
    assert len(told) == 3
