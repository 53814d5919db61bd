"""Labels at lines' ends are moved apart as little as needed; a panel says what it cannot show."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squelch.cluster.plots.draw import apart

HEIGHTS = st.lists(st.tuples(st.floats(-500, 500), st.floats(5, 40)), min_size=1, max_size=12)


@given(HEIGHTS)
def test_labels_never_overlap_and_keep_their_order(labels: list[tuple[float, float]]) -> None:
    heights, sizes = [h for h, _ in labels], [s for _, s in labels]
    moved = apart(heights, sizes)
    order = sorted(range(len(labels)), key=lambda i: heights[i])
    for below, above in itertools.pairwise(order):
        assert moved[above] - moved[below] >= (sizes[above] + sizes[below]) / 2 - 1e-6


@given(HEIGHTS)
def test_labels_that_do_not_overlap_stay(labels: list[tuple[float, float]]) -> None:
    heights = [100.0 * i for i in range(len(labels))]
    assert apart(heights, [size for _, size in labels]) == heights


def test_two_labels_at_one_height_share_the_move() -> None:
    assert apart([50, 50], [10, 10]) == [45, 55]
    assert apart([0, 4, 100], [10, 10, 10]) == pytest.approx([-3, 7, 100])
