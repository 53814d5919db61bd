"""The curves of the page of metrics: means of the past alone, and two runs on one axis."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squelch.cluster.inspector import curves
from squelch.cluster.inspector.curves import over_steps, smoothed

VALUES = st.lists(st.one_of(st.floats(-1e6, 1e6), st.just(float("nan"))), max_size=30)


@given(VALUES, st.integers(1, 8))
def test_each_value_becomes_the_mean_of_the_newest_known_ones_and_gaps_stay(values: list[float], window: int) -> None:
    found = smoothed(np.array(values, dtype=float), window)
    for place, value in enumerate(values):
        past = [one for one in values[: place + 1] if one == one][-window:]
        assert np.isnan(found[place]) if value != value else found[place] == pytest.approx(np.mean(past), abs=1e-5)


def test_runs_of_other_steps_share_an_axis_and_a_long_run_is_thinned_for_both(monkeypatch: pytest.MonkeyPatch) -> None:
    even, odd = np.arange(0, 40, 2.0), np.arange(1, 40, 2.0)
    tables = {"even": np.stack([even, even], axis=1), "odd": np.stack([odd, -odd], axis=1)}
    found = over_steps(tables, ["key"])
    assert found["step"] == list(range(40))
    assert found["runs"][0]["values"]["key"][:3] == [0.0, None, 2.0]
    assert found["runs"][1]["values"]["key"][:3] == [None, -1.0, None]
    monkeypatch.setattr(curves, "MOST_POINTS", 10)
    thin = over_steps(tables, ["key"])
    assert thin["step"][0] == 1.5 and thin["runs"][0]["values"]["key"][0] == 1.0 and len(thin["step"]) == 10


def test_a_run_without_a_step_and_a_value_that_is_not_finite_are_gaps() -> None:
    found = over_steps({"new": np.zeros((0, 2)), "old": np.array([[1.0, np.inf], [2.0, 3.0]])}, ["key"], ["key"], 5)
    assert found["runs"][0]["values"]["key"] == [None, None]
    assert found["runs"][1]["values"]["key"] == [None, 3.0]
