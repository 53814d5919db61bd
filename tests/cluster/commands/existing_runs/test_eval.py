"""`squelch eval` says whose tasks it plays where a name may be a run's or a recipe's."""

from pathlib import Path

import pytest

from squelch.cluster.cli import main
from squelch.cluster.loop import evaluation
from tests.earlier import lay


@pytest.mark.parametrize("has_run", [False, True])
def test_a_recipe_in_place_of_a_run_is_said(tmp_path: Path, monkeypatch, capsys, has_run: bool) -> None:
    monkeypatch.chdir(tmp_path)
    if has_run:
        lay(tmp_path).rename(tmp_path / "runs" / "frozenlake")
    monkeypatch.setattr(evaluation, "evaluate", lambda asked, source, say: 0)
    assert main(["eval", "frozenlake"]) == 0
    said = "runs holds no run frozenlake: the recipe of that name is played, with initial"
    assert (said in capsys.readouterr().out) is not has_run
