"""Metrics by the step that they describe."""

import pytest

from squelch.cluster.runs.series import described, last_value, series


@pytest.mark.parametrize(
    ("key", "own"),
    [
        ("probe/mi", "probe/step"),
        ("validation/success", "validation/step"),
        ("kind/2 moves/mi_est", "scorer/step"),
        ("turn/2/mi_est", "scorer/step"),
        ("success", None),
    ],
)
def test_a_value_stands_at_the_step_that_it_describes_or_at_that_of_its_line(key: str, own: str | None) -> None:
    lines = [{"step": 4, key: 0.1, "probe/step": 3, "validation/step": 3, "scorer/step": 3}, {"step": 5, key: 0.2}]
    assert described(lines[0], key) == (4 if own is None else 3)
    assert described(lines[0] | {f"{own}": None}, key) == 4
    assert list(series(lines[::-1], key).items()) == [(4 if own is None else 3, 0.1), (5, 0.2)]


def test_a_line_without_the_value_leaves_no_entry() -> None:
    assert series([{"step": 1}, {"step": 2, "success": None}, {"step": 3, "success": 0.5}], "success") == {3: 0.5}


def test_the_last_value_may_be_bounded_by_a_step() -> None:
    values = {1: 0.1, 5: 0.5, 9: 0.9}
    assert (last_value(values), last_value(values, until=8), last_value(values, until=0)) == (0.9, 0.5, None)
