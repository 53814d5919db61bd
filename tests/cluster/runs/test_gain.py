import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squelch.cluster.runs.gain import gain_interval, pass_at


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=60))
def test_the_paired_gain_is_the_difference_of_means_inside_its_interval(pairs):
    before, after = (np.array(column) for column in zip(*pairs, strict=True))
    mean, low, high = gain_interval(before, after)
    assert mean == pytest.approx(after.mean() - before.mean()) and low <= mean <= high


def test_tasks_that_all_have_the_same_gain_still_leave_it_an_interval():
    nothing, everything = np.zeros(16, dtype=bool), np.ones(16, dtype=bool)
    assert gain_interval(nothing, nothing) == (0.0, pytest.approx(-0.194, abs=1e-3), pytest.approx(0.194, abs=1e-3))
    assert gain_interval(nothing, everything) == (1.0, pytest.approx(0.806, abs=1e-3), 1.0)
    assert gain_interval(everything, nothing) == (-1.0, -1.0, pytest.approx(-0.806, abs=1e-3))


def test_the_interval_of_a_small_gain_of_few_tasks_holds_it():
    rng = np.random.default_rng(0)
    found = [gain_interval(np.zeros(16, dtype=bool), rng.random(16) < 0.1) for _ in range(400)]
    assert sum(low <= 0.1 <= high for _, low, high in found) >= 0.9 * len(found)


@given(st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=8), st.integers(1, 5))
def test_pass_at_k_is_the_share_of_all_choices_of_k_samples_with_a_success(tasks, draws):
    found = pass_at(np.array(tasks), draws)
    for samples, value in zip(tasks, found, strict=True):
        choices = list(itertools.combinations(samples, draws))
        assert value == pytest.approx(sum(map(any, choices)) / len(choices))
