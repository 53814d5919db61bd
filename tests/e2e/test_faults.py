"""Twelve random faults in one run on two hosts, thrown by the study's own harness (`benchmarks.faults`): the run goes
on, every party that was killed is noticed and replaced, and no ticket is lost or doubled."""

import json
from pathlib import Path

import pytest

from tests.e2e.faults.cell import run_boot
from tests.e2e.faults.plan import ACTORS, twelve
from tests.e2e.hosts import need_namespaces

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1200)]


def test_twelve_random_faults_cost_nothing_but_time(tiny_policy: Path, tmp_path: Path) -> None:
    need_namespaces()
    faults = twelve()
    assert {fault.target for fault in faults} >= set(ACTORS)
    found = run_boot(faults, str(tiny_policy), tmp_path)
    text = json.dumps(found, indent=1)
    assert [fault["outcome"] for fault in found["faults"]] == ["went on"] * len(faults), text
    assert found["end"]["code"] == 143 and found["verdict"]["trained"] > 0, text
    assert not found["verdict"]["lost"] and not found["verdict"]["doubled"], text
    killed = [fault for fault in found["faults"] if fault["fault"]["kind"] == "kill"]
    assert killed and all(fault["restarted"] for fault in killed), text
