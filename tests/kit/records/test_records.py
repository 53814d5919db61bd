"""Trajectories of several segments: what each turn saw, and statistics that count every sampled token once."""

from dataclasses import fields, replace

import numpy as np
from hypothesis import given, settings

from squelch.kit.records.records import Group, Segment, Trajectory, Turn, summarise
from tests.kit.archive.test_schema import groups


def test_each_turn_sees_its_own_segment_from_the_start_and_no_other() -> None:
    places = [(2, 4), (5, 7), (10, 12), (14, 15)]
    turns = [Turn(a, b, a, b, 0.0, 0.0, True, False, 1, 0, 0) for a, b in places]
    mask = np.zeros(16, dtype=bool)
    for start, end in places:
        mask[start:end] = True
    ids, causes = np.arange(16, dtype=np.int32), (Segment(7, "compaction"), Segment(12, "history rewritten"))
    one = Trajectory(0, ids, mask, np.zeros(16, np.float32), turns, False, False, segments=causes)
    assert one.spans == [(0, 7), (7, 12), (12, 16)]
    assert [one.segment_of(t) for t in range(4)] == [0, 0, 1, 2]
    assert [one.prompt_ids(t).tolist() for t in range(4)] == [[0, 1], [0, 1, 2, 3, 4], [7, 8, 9], [12, 13]]
    assert [one.reasoning_ids(t).tolist() for t in range(4)] == [[2, 3], [5, 6], [10, 11], [14]]


def test_a_turn_that_sampled_nothing_belongs_to_the_segment_that_it_ends() -> None:
    empty = Turn(3, 3, 3, 3, 0.0, 0.0, False, False, 0, 0, 0)
    zeros = np.zeros(6, np.float32)
    one = Trajectory(
        0, np.arange(6, dtype=np.int32), zeros > 0, zeros, [empty], False, False, segments=(Segment(3, "x"),)
    )
    assert one.segment_of(0) == 0 and one.prompt_ids(0).tolist() == [0, 1, 2]


@settings(max_examples=30, deadline=None)
@given(groups())
def test_what_the_filter_knows_of_a_group_does_not_depend_on_segments(group: Group) -> None:
    """Lengths, surprisals, returns, versions: each sampled token counts once."""
    whole = replace(group, trajectories=[replace(one, segments=()) for one in group.trajectories])
    mine, theirs = summarise(group), summarise(whole)
    for field in fields(mine):
        np.testing.assert_array_equal(vars(mine)[field.name], vars(theirs)[field.name], field.name)
    assert mine.lengths.tolist() == [int(t.loss_mask.sum()) for t in group.trajectories if t.failure is None]
