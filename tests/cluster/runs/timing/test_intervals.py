from hypothesis import given
from hypothesis import strategies as st

from squelch.cluster.runs.timing.intervals import clip_intervals, union_seconds


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=30))
def test_the_union_of_intervals_counts_each_second_once(spans):
    intervals = [(float(start), float(start + length)) for start, length in spans]
    covered = {second for start, length in spans for second in range(start, start + length)}
    assert union_seconds(intervals) == len(covered)
    inside = {s for s in covered if 10 <= s < 30}
    assert union_seconds(clip_intervals(intervals, 10.0, 30.0)) == len(inside)
