"""The examples of docs/guide/python.md run, one after another."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "python.md"


def test_the_examples_of_the_page_run(tmp_path, tiny_policy, samples, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "checkpoint-100").symlink_to(tiny_policy)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    names = {"prompts": samples[0], "completions": samples[1]}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert "nats\n" in capsys.readouterr().out
