"""The scorer's benchmark compares equal metrics, and counts what it says."""

import pytest

from benchmarks.cross_scoring import __main__ as cross_scoring
from benchmarks.cross_scoring.work import POLICIES, Operations, random_policy, small_shape

TINY = {"width": 32, "hidden": 48, "vocabulary": 64}


def test_both_forms_give_the_same_metrics(monkeypatch):
    monkeypatch.setitem(POLICIES, "tiny", TINY)
    monkeypatch.setattr(cross_scoring, "PAIRS", 64)
    monkeypatch.setattr(cross_scoring, "TIMED", 1)
    row = cross_scoring.forms("tiny", 12, 2, prompts=16)
    assert row["largest_difference_nats_per_token"] < 1e-4
    assert row["pairs_timed"] == {"engine": 2 * 2 * 128, "peer": 2 * 2} and row["pairs"] == 16 * 128


def test_operations_are_counted_as_the_layout_needs_them():
    """A prompt of 40 and a reasoning of 22: 62 tokens fed in full; 21 when the prompt's part is shared."""
    count = Operations.of(random_policy(small_shape("0.8 M")))
    assert count.linear == 2 * 4 * (2 * 128 * 128 + 2 * 128 * 64 + 3 * 128 * 384)
    assert count.plain(40, 22) == 62 * (count.linear + count.head) + count.attention * 62 * 63 / 2
    shared = 21 * (count.linear + count.head) + count.attention * (21 * 40 + 21 * 22 / 2)
    assert count.engine(40, 22, 10**12) == pytest.approx(shared)
