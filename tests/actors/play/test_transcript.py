"""Segments in progress, and the trajectory that they become."""

from __future__ import annotations

import numpy as np

from squelch.actors.messages import Completion
from squelch.actors.play.attempt import Attempt
from squelch.actors.play.transcript import Transcript, joined
from squelch.kit.records.records import Segment, VersionSpan


def _sampled(*ids: int, versions: tuple[int, int] = (3, 3), finish: str = "stop", spans: tuple = ()) -> Completion:
    return Completion("", np.array(ids, np.int32), np.full(len(ids), -0.5, np.float32), finish, *versions, None, spans)


def _segment(fed: list[int], completion: Completion, reasoning: tuple[int, int] = (0, 1)) -> Transcript:
    segment = Transcript()
    segment.add(np.array(fed, np.int32))
    segment.add_sampled(completion)
    segment.add_turn(completion, reasoning, True, 1)
    return segment


def test_one_segment_is_joined_as_it_is() -> None:
    segment = _segment([1, 2], _sampled(7, 8, 9))
    whole = joined([segment], [""])
    assert whole.token_ids.tolist() == [1, 2, 7, 8, 9]
    assert whole.token_ids.dtype == np.int32 and whole.log_probs.dtype == np.float32
    assert whole.loss_mask.tolist() == [False, False, True, True, True]
    assert whole.log_probs.tolist() == [0, 0, -0.5, -0.5, -0.5]
    assert whole.turns[0] is segment.turns[0]
    assert (whole.segments, whole.version_spans) == ((), (VersionSpan(2, 5, 3),))


def test_positions_of_later_segments_count_in_the_whole_trajectory() -> None:
    first = _segment([1, 2], _sampled(7, 8))
    second = _segment([4], _sampled(5, 6, versions=(3, 4), spans=(VersionSpan(0, 1, 3), VersionSpan(1, 2, 4))), (1, 2))
    whole = joined([first, second], ["", "compaction"])
    assert whole.token_ids.tolist() == [1, 2, 7, 8, 4, 5, 6]
    assert whole.loss_mask.tolist() == [False, False, True, True, False, True, True]
    assert whole.segments == (Segment(4, "compaction"),)
    later = whole.turns[1]
    assert (later.sample_start, later.sample_end, later.reasoning_start, later.reasoning_end) == (5, 7, 6, 7)
    assert whole.version_spans == (VersionSpan(2, 4, 3), VersionSpan(5, 6, 3), VersionSpan(6, 7, 4))
    assert second.turns[0].sample_start == 1, "the segment keeps its own positions"


def test_unknown_version_spans_of_one_segment_make_those_of_the_trajectory_unknown() -> None:
    unknown = _segment([4], _sampled(5, versions=(3, 4)))
    assert unknown.version_spans is None
    assert joined([_segment([1], _sampled(2)), unknown], ["", "template"]).version_spans is None


def test_an_attempt_without_a_turn_is_a_trajectory_without_tokens() -> None:
    trajectory = Attempt().trajectory(2, "worker")
    assert (trajectory.index, len(trajectory.token_ids), trajectory.turns, trajectory.segments) == (2, 0, [], ())
