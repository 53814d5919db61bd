"""The model of a step's time against the real coordinator in virtual time, where nothing else takes any."""

import time
from pathlib import Path

import pytest

from benchmarks.step_time import compared, settings, simulate
from tests.fakes import clock


@pytest.mark.slow
def test_the_model_predicts_the_steps_of_the_real_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {(workers, age): settings(workers, age, 12, tmp_path) for age in (0, 1) for workers in (1, 2, 4)}
    for config in runs.values():
        loop = clock.VirtualLoop()
        monkeypatch.setattr(time, "time", loop.time)
        clock.run(simulate(config), loop)
    monkeypatch.undo()
    rows = compared(runs)
    for row in rows:
        bound = 0.15 if row["staleness"] else 0.05
        assert abs(row["error_from_one"]) < bound and abs(row["error_from_two"]) < bound, row
