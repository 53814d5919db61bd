"""When a step is scored, and what is said of a scorer that is busy, late or dead."""

import pytest

from squelch.actors.scorer.pace import ScoringPace


def test_pace_scores_the_first_step_and_every_kth() -> None:
    pace = ScoringPace(every=5, timeout_s=10)
    assert [step for step in range(1, 16) if pace.due(step)] == [1, 5, 10, 15]


def test_a_busy_scorer_is_skipped_and_counted_and_then_goes_on() -> None:
    pace = ScoringPace(every=1, timeout_s=10)
    assert pace.begin(1, now=0.0)
    assert not pace.begin(2, now=1.0) and not pace.begin(3, now=2.0)
    assert pace.end("done") is None
    assert pace.begin(4, now=3.0)
    assert pace.outcomes == {"skipped": 2, "done": 1}


def test_a_late_scorer_is_reported_once_by_step_and_limit() -> None:
    pace = ScoringPace(every=1, timeout_s=10)
    assert pace.check(100.0) is None, "nothing is under way"
    pace.begin(3, now=0.0)
    assert pace.check(10.0) is None
    assert "step 3: over 10 s (scorer.timeout_s)" in pace.check(10.1)
    assert pace.check(20.0) is None
    pace.end("done")
    pace.begin(4, now=20.0)
    assert "step 4" in pace.check(31.0)
    assert pace.outcomes["late"] == 2


def test_ending_what_is_not_under_way_or_with_another_word_is_an_error() -> None:
    pace = ScoringPace(every=1, timeout_s=10)
    with pytest.raises(RuntimeError, match="no scorer step is under way"):
        pace.end("done")
    pace.begin(1, now=0.0)
    with pytest.raises(ValueError, match="'finished' is none of"):
        pace.end("finished")


def test_a_scorer_step_whose_groups_are_lost_counts_as_withdrawn_whether_it_has_ended_or_not() -> None:
    pace = ScoringPace(every=1, timeout_s=10)
    pace.begin(1, now=0.0)
    assert pace.end("done") is None
    pace.withdraw()
    pace.begin(1, now=1.0)
    assert pace.end("withdrawn") is None
    assert +pace.outcomes == {"withdrawn": 2}
