"""`python -m benchmarks.tiny`: which policies it builds."""

import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import tiny
from squelch.envs.registry import environment_names


@pytest.mark.parametrize(
    ("flags", "names", "miniature"),
    [
        (["--quick"], ["FrozenLake"], True),
        (["--quick", "--env", "Sokoban"], ["Sokoban"], False),
        ([], environment_names(), False),
    ],
)
def test_quick_without_an_environment_builds_one_miniature(
    monkeypatch: pytest.MonkeyPatch, flags: list[str], names: list[str], miniature: bool
) -> None:
    built = []

    def measure(directory: Path, config: Any, tasks: int, prompts: int, recipe: Any) -> dict[str, Any]:
        built.append((config.environment.name, recipe is not None))
        return {}

    monkeypatch.setattr(tiny, "measure", measure)
    monkeypatch.setattr(tiny, "load", lambda name: tiny_config(name))
    monkeypatch.setattr(tiny, "print_targets", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["tiny", *flags])
    tiny.main()
    assert [(name.lower(), small) for name, small in built] == [(name.lower(), miniature) for name in names]


def tiny_config(name: str) -> Any:
    from types import SimpleNamespace

    return SimpleNamespace(environment=SimpleNamespace(name=name))
