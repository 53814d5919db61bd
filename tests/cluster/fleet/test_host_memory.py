"""A start beside too little free memory."""

import pytest

from squelch.cluster.config import load
from squelch.cluster.fleet import host_memory
from squelch.cluster.fleet.host_memory import GIB, least, note


def test_the_least_memory_of_a_run_counts_every_copy_of_the_weights() -> None:
    billion = least(load("frozenlake", ["scorer.dtype=float32", "rollout.count=2"]), 10**9)
    assert billion["2 rollout workers"] == pytest.approx(2 * (1.6 * GIB + 4e9))
    assert billion["2 learner ranks"] == pytest.approx(0.8 * GIB + 16e9)
    assert billion["scorer"] == pytest.approx(0.4 * GIB + 4e9)
    assert billion["object store"] > 12e9
    assert sum(least(load("frozenlake"), 805_000).values()) < 6 * GIB, "a laptop of 8 GiB plays the demo unwarned"


@pytest.mark.parametrize(("free_gib", "warned"), [(64, False), (2.5, True)])
def test_too_little_free_memory_is_said_with_figures(free_gib: float, warned: bool, monkeypatch) -> None:
    monkeypatch.setattr(host_memory, "free_memory", lambda: int(free_gib * GIB))
    said = note(load("frozenlake"), 4 * 10**6)
    assert (said is not None) == warned
    if said is not None:
        assert "2.5 GiB of memory free" in said and "1 rollout worker 1.6" in said and "2 learner ranks 0.8" in said
