"""The budget of restarts over time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squelch.cluster.control.restart_budget import LONGEST_BACKOFF_S, RestartBudget


def test_each_further_restart_waits_twice_as_long_and_one_too_many_names_the_last_cause() -> None:
    budget = RestartBudget(3, 100.0, 1.0)
    assert [budget.spend("learner", "killed", now) for now in (0.0, 1.0, 2.0)] == [0.0, 1.0, 2.0]
    assert budget.left("learner", 2.0) == 0 and budget.left("filter", 2.0) == 3
    message = r"^learner died 4 times within 100 s \(cluster\.max_restarts=3\); last cause: memory$"
    with pytest.raises(RuntimeError, match=message):
        budget.spend("learner", "memory", 3.0)


def test_restarts_that_lie_back_longer_than_the_window_are_forgiven() -> None:
    budget = RestartBudget(1, 100.0, 1.0)
    assert [budget.spend("filter", "killed", 150.0 * k) for k in range(9)] == [0.0] * 9


@given(st.lists(st.floats(0.0, 50.0), max_size=60), st.integers(0, 5))
def test_no_window_holds_more_restarts_than_allowed_and_no_wait_is_longer_than_a_minute(gaps, allowed) -> None:
    budget, now, spent = RestartBudget(allowed, 60.0, 5.0), 0.0, []
    for gap in gaps:
        now += gap
        if budget.left("x", now):
            assert 0.0 <= budget.spend("x", "killed", now) <= LONGEST_BACKOFF_S
            spent.append(now)
        assert sum(now - time < 60.0 for time in spent) <= allowed
