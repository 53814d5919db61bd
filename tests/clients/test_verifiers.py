"""A `Taskset` of verifiers 0.4 through the environment `Agent`: its own harness plays, and its own trace pays."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.bridges import assert_paid, played, three_answers
from tests.clients.support import ROOT

EXAMPLES = ROOT / "docs" / "examples"
FAULTY = """
import sys
sys.path.insert(0, {examples!r})
from verifiers_sums import Sum, Sums, SumsConfig, vf

class Faulty(Sum):
    @vf.reward
    async def unmoved(self, trace: vf.Trace) -> float:
        return 0.0 / (trace.last_reply != "fault")

class FaultySums(vf.Taskset[Faulty, SumsConfig]):
    def load(self):
        return [Faulty(one.data, self.config.task) for one in Sums.load(self)]
"""
"""The guide's example with one more reward, which a certain answer breaks."""

pytestmark = pytest.mark.usefixtures("rendered_here")


def test_a_taskset_is_played_by_its_harness_and_paid_by_its_trace(tmp_path: Path) -> None:
    (tmp_path / "faulty.py").write_text(FAULTY.format(examples=str(EXAMPLES)))
    group = played("verifiers", tmp_path, 64, three_answers(), f"{tmp_path / 'faulty.py'}:FaultySums")
    assert_paid(group, 1.1, "ZeroDivisionError")
