"""The scorer's benchmark counts the operations that it says."""

import pytest

from benchmarks.cross_scoring.work import Operations, random_policy, small_shape


def test_operations_are_counted_as_the_layout_needs_them():
    """A prompt of 40 and a reasoning of 22, of which 21 are fed beside the prompt's part, which is shared."""
    count = Operations.of(random_policy(small_shape("0.8 M")))
    assert count.linear == 2 * 4 * (2 * 128 * 128 + 2 * 128 * 64 + 3 * 128 * 384)
    shared = 21 * (count.linear + count.head) + count.attention * (21 * 40 + 21 * 22 / 2)
    assert count.engine(40, 22, 10**12) == pytest.approx(shared)
