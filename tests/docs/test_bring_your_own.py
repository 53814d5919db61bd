"""The page on a user's own prompts: what it states of its example in numbers. `make walk` runs the page."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from squelch.cluster.config import load

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "bring-your-own.md"
MARKED = re.compile(r"<!-- (file|run): (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)


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
