"""A real sweep of two cells, interrupted at the second one and gone on with."""

import json
import signal
import time
from pathlib import Path

import pytest

from actors.archive.reader import read_groups
from cluster.config import load
from tests.e2e.support import Run, children, small_run, wait_gone

pytestmark = [pytest.mark.ray, pytest.mark.timeout(700)]


def test_an_interrupted_sweep_goes_on_with_the_cells_that_are_not_finished(tmp_path: Path, tiny_policy: Path):
    small = ("loop.steps=1", "validation.tasks=16", "scorer.enabled=false")
    settings = small_run(tmp_path, tiny_policy, "x", *small)[2:]
    settings.remove("name=x")
    words = ["sweep", "frozenlake", *settings, "--grid", "filter.rule=none,top_p", "--name", "two"]
    cells = [tmp_path / "two" / name for name in ("rule-none_s0", "rule-top_p_s0")]

    first = Run(*words, timeout_s=300.0)
    first.until(lambda line: line.startswith("cell 2/2 rule-top_p_s0 starts"))
    while "algorithm" not in ((cells[1] / "train.log").read_text() if (cells[1] / "train.log").exists() else ""):
        assert time.monotonic() < first.deadline
        time.sleep(0.1)
    below = children(first.process.pid)
    first.signal(signal.SIGINT)
    assert first.finish() == 130 and "the same command continues them" in first.text, first.text
    assert not wait_gone(below)
    written = (cells[0] / "summary.json").stat().st_mtime_ns

    second = Run(*words, "--json", timeout_s=300.0)
    assert second.finish() == 0, second.text
    assert (cells[0] / "summary.json").stat().st_mtime_ns == written
    report = json.loads(second.lines[[line.startswith("{") for line in second.lines].index(True)])
    assert report == json.loads((tmp_path / "two" / "sweep.json").read_text()) and report["finished"]
    assert [cell["status"] for cell in report["cells"]] == ["finished", "finished"]
    assert [load(str(cell / "config.yaml")).filter.rule for cell in cells] == ["none", "top_p"]
    tasks = [set(read_groups(cell, columns=["task_seed"]).column("task_seed").to_pylist()) for cell in cells]
    assert tasks[0] == tasks[1] and len(tasks[0]) == 4
