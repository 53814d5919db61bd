"""Twelve random faults in one run on two hosts, thrown by the study's own harness (`benchmarks.faults`): the run goes
on or ends by name, none hangs, and no ticket is lost or doubled."""

from pathlib import Path

import pytest

from benchmarks.faults.cell import run_boot
from benchmarks.faults.plan import draw

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
SEED = 12
COUNT = 12
GRACE_S = 2.0
NOTICED_S = {"kill": 2.0 + GRACE_S, "stop": 8.0 + 4.0 + GRACE_S}
"""Bounds on the time to the first restart; a stopped party counts as hung after 8 s in these runs."""


def test_twelve_random_faults_cost_nothing_but_time(tiny_policy: Path, tmp_path: Path) -> None:
    found = run_boot(draw(SEED, COUNT), str(tiny_policy), tmp_path)
    outcomes = {fault["outcome"] for fault in found["faults"]}
    assert outcomes <= {"went on", "ended", "no such process"}, found["faults"]
    assert len(found["faults"]) == COUNT and found["end"]["code"] == 143, found["end"]
    assert found["verdict"]["lost"] == found["verdict"]["doubled"] == (), found["verdict"]
    assert found["verdict"]["trained"] > 0
