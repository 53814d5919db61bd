"""Where `squelch status` is asked of a run that has not begun. What it says of others: tests/cluster/runs."""

from pathlib import Path

import pytest

from squelch.cluster.cli import main
from squelch.cluster.runs.driver import Driver, name


@pytest.mark.parametrize("place", ["runs", "runs/left", "left"])
def test_a_run_whose_policy_is_still_warmed_up_is_said_to_be_starting(place: str, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    driver = Driver(Path("runs/left"))
    driver.hold(print)
    assert main(["status", place]) == 2
    assert f"the run in runs/left has not begun: {name()} is starting it" in capsys.readouterr().err
    driver.close()
    assert main(["status", place]) == 2
    assert "is starting" not in capsys.readouterr().err
