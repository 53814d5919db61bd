"""Every command of `research` has the flags that every benchmark has."""

from pathlib import Path

import pytest

import research
from tests.benchmarks.test_flags import commands, flags_of

NAMES = commands(Path(research.__file__).parent)


@pytest.mark.parametrize("name", NAMES)
def test_every_study_can_be_quick_and_can_speak_json(name, monkeypatch, capsys):
    assert {"--quick", "--json"} <= flags_of(f"research.{name}", monkeypatch, capsys)
