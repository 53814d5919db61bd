import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.prefixes import shared_prefixes

ROWS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=0, max_size=8)


@settings(deadline=None)
@given(ROWS, st.integers(0, 11))
def test_every_row_is_its_prefix_and_its_own_tokens_and_no_limit_is_passed(rows: list[list[int]], limit: int) -> None:
    ids = [np.array(row) for row in rows]
    limits = [min(limit, len(row) - 1) for row in rows]
    prefixes, prefix_of = shared_prefixes(ids, limits, max(map(len, ids), default=1))
    length = prefixes.shape[1]
    assert len(prefix_of) == len(rows) and all(length <= limit for limit in limits)
    for row, which in zip(ids, prefix_of, strict=True):
        assert (row[:length] == prefixes[which]).all()
    assert len(np.unique(prefixes, axis=0)) == len(prefixes)


def test_the_length_that_feeds_least_is_taken() -> None:
    system, tasks = [7] * 10, [[1] * 4, [2] * 4]
    rows = [np.array(system + tasks[i % 2] + [i] * 6) for i in range(8)]
    prefixes, prefix_of = shared_prefixes(
        rows, [14] * 8, 20
    )  # 2 x 14 + 8 x 6 = 76 tokens; 10 + 8 x 10 = 90 at length 10
    assert prefixes.shape == (2, 14) and prefix_of.tolist() == [0, 1] * 4
    alone = [np.array(system + [i] * 10) for i in range(8)]  # 10 + 8 x 10 = 90; 8 x 14 + 8 x 6 = 160 at length 14
    assert shared_prefixes(alone, [14] * 8, 20)[0].tolist() == [system]


def test_nothing_is_shared_where_it_saves_too_little() -> None:
    rows = [np.array([5, *range(i, i + 99)]) for i in range(4)]
    assert shared_prefixes(rows, [50] * 4, 100)[0].shape == (1, 0)
    assert shared_prefixes(rows[:1], [50], 100)[0].shape == (1, 0)
