"""An axis of steps: a pause takes no room, and minutes and steps can be mapped to one another."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squelch.cluster.plots.step_axis import StepClock

GAPS = st.lists(st.tuples(st.integers(1, 50), st.floats(0.1, 1e5)), min_size=2, max_size=20)


def test_equal_steps_are_equally_wide_and_a_pause_takes_no_room() -> None:
    clock = StepClock.of([(1, 60.0), (2, 120.0), (3, 60_120.0), (4, 60_180.0)], 0.0)
    np.testing.assert_allclose(clock.step_at([1, 2, 1002, 1003, 502]), [1, 2, 3, 4, 2.5])


@given(GAPS, st.lists(st.floats(-1e4, 1e6), max_size=5))
def test_a_minute_mapped_to_its_step_and_back_is_the_same(gaps: list[tuple[int, float]], minutes: list[float]) -> None:
    steps, times = np.cumsum([step for step, _ in gaps]), np.cumsum([seconds for _, seconds in gaps])
    clock = StepClock.of(list(zip(steps.tolist(), times.tolist(), strict=True)), 0.0)
    np.testing.assert_allclose(clock.minute_of(clock.step_at(minutes)), minutes, rtol=1e-6, atol=1e-3)
    assert (np.diff(clock.step_at(sorted(minutes))) >= 0).all()


@pytest.mark.parametrize("times", [[], [(1, 5.0)], [(1, 5.0), (1, 6.0), (2, 5.0)]])
def test_fewer_than_two_steps_in_order_of_time_have_no_axis(times: list[tuple[int, float]]) -> None:
    assert StepClock.of(times, 0.0) is None
