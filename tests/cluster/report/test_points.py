"""Points of an arm: as many as a line can show, means within the values, intervals over seeds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squelch.cluster.report.points import MAX_POINTS, OVER_PROMPTS, OVER_SEEDS, last_value, over_steps, with_interval
from squelch.cluster.report.runs import Arm, Run


def an_arm(*series: dict[int, float], key: str = "success") -> Arm:
    """One run for each series of `key`."""
    settings = {"environment.name": "E", "filter.rule": "none"}
    runs = [
        Run(f"runs/{i}", settings | {"seed": i}, [{"step": s, "time": 0.0, key: v} for s, v in one.items()])
        for i, one in enumerate(series)
    ]
    return Arm("E", "arm", settings, tuple(runs))


SERIES = st.dictionaries(st.integers(0, 3000), st.floats(-5, 5), min_size=1, max_size=40)


@given(st.lists(SERIES, min_size=1, max_size=4))
def test_points_are_few_ordered_and_within_the_values(series: list[dict[int, float]]) -> None:
    points = over_steps(an_arm(*series), "success")
    steps = [point["step"] for point in points]
    assert len(points) <= MAX_POINTS and steps == sorted(steps)
    values = [value for one in series for value in one.values()]
    assert all(min(values) - 1e-9 <= point["mean"] <= max(values) + 1e-9 for point in points)
    assert all(point["runs"] == len(series) for point in points), "a mean is over every run"
    assert all(point["low"] <= point["mean"] <= point["high"] for point in points if point["low"] is not None)


def test_a_short_run_is_shown_step_by_step() -> None:
    points = over_steps(an_arm({1: 0.5, 2: 0.25, 5: 1.0}), "success")
    assert [(point["step"], point["mean"], point["low"]) for point in points] == [
        (1, 0.5, None),
        (2, 0.25, None),
        (5, 1.0, None),
    ]


def test_the_interval_is_students_over_seeds() -> None:
    (point,) = over_steps(an_arm({3: 0.2}, {3: 0.4}, {3: 0.6}), "success")
    half = 4.302653 * 0.2 / 3**0.5
    assert point["mean"] == pytest.approx(0.4) and point["interval"] == OVER_SEEDS
    assert (point["low"], point["high"]) == (pytest.approx(0.4 - half), pytest.approx(0.4 + half))


def test_a_single_run_shows_the_interval_that_it_states_itself() -> None:
    line = {"step": 1, "time": 0.0, "mi": 0.5, "mi_low": 0.4, "mi_high": 0.7}
    arm = Arm("E", "arm", {}, (Run("runs/a", {"seed": 0}, [line]),))
    (point,) = over_steps(arm, "mi")
    assert (point["low"], point["high"], point["interval"]) == (0.4, 0.7, OVER_PROMPTS)


def test_scorings_at_neighbouring_steps_are_compared() -> None:
    points = over_steps(an_arm({s: 1.0 for s in range(3, 60, 3)}, {s: 0.0 for s in range(4, 60, 3)}), "success")
    assert len(points) > 15 and {point["mean"] for point in points} == {0.5}


def test_a_run_that_never_recorded_a_figure_does_not_hide_the_others() -> None:
    assert [point["runs"] for point in over_steps(an_arm({1: 0.5}, {}), "success")] == [1]
    assert over_steps(an_arm({}, {}), "success") == []


def test_the_last_value_may_be_bounded() -> None:
    run = an_arm({1: 0.1, 5: 0.5, 9: 0.9}).runs[0]
    assert (last_value(run, "success"), last_value(run, "success", until=8), last_value(run, "none")) == (
        0.9,
        0.5,
        None,
    )
    assert with_interval([None, 0.5]) == {"mean": 0.5, "low": None, "high": None, "values": [0.5]}
