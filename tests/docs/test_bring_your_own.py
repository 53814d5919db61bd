"""The page on a user's own prompts is run as it stands: its file, its function, its command."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from squelch.cluster.config import load
from squelch.envs.registry import make

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "bring-your-own.md"
MARKED = re.compile(r"<!-- (file|run): (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)


def test_the_file_the_function_and_the_command_of_the_page_make_tasks_and_rewards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marked = {name: (kind, content) for kind, name, content in MARKED.findall(PAGE.read_text())}
    monkeypatch.chdir(tmp_path)
    for name, (kind, content) in marked.items():
        if kind == "file":
            Path(name).write_text(content)
    squelch, train, recipe, *overrides = shlex.split(marked["prompts"][1])
    assert (squelch, train) == ("squelch", "train")
    environment = load(recipe, overrides).environment
    env = make(environment.name, "train", environment.options, environment.prompt)
    _, info = env.reset(seed=0, options={"noise_seed": 0})
    season = info["messages"][-1]["content"] == "Name a season."
    assert season or info["messages"][-1]["content"] == "Name a colour of the rainbow."
    assert env.group_rewards(["Violet", "spring"], [[1], [2]]) == [[not season, not season], [season, season]]


def test_the_recipe_and_the_command_of_several_environments_give_the_schedule_that_the_page_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marked = {name: content for _, name, content in MARKED.findall(PAGE.read_text())}
    monkeypatch.chdir(tmp_path)
    Path("mixed.yaml").write_text(marked["mixed.yaml"])
    _, _, recipe, *overrides = shlex.split(marked["mixed"])
    config = load(recipe, overrides)
    lake, boxes = config.mixture.entries
    assert (lake.label, boxes.label, boxes.environment.options) == ("FrozenLake", "boxes", {"size": 7})
    assert (boxes.environment.format.max_turns, boxes.tokens(48), lake.tokens(48)) == (4, 40, 48)
    schedule = config.mixture.schedule()
    turns = [schedule.turn(ticket).entry for ticket in range(80)]
    assert config.loop.prompts == 8 and all(turns[i : i + 8].count(1) == 2 for i in range(0, 80, 8))
