import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.runs.gain import gain_interval


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=60))
def test_the_paired_gain_is_the_difference_of_means_inside_its_interval(pairs):
    before, after = (np.array(column) for column in zip(*pairs, strict=True))
    mean, low, high = gain_interval(before, after)
    assert mean == pytest.approx(after.mean() - before.mean()) and low <= mean <= high
