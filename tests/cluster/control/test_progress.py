"""When ranks count as hung: by their marks, or by their answers where there are no marks yet."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cluster.control.progress import FACTOR, ProgressWatch
from learner.progress import Marks, RankProgress

STARTED = RankProgress(0, 0.0)


def watched(*seen: tuple[float, list[RankProgress | None]], answers_count: bool = False) -> ProgressWatch:
    watch = ProgressWatch(60.0, 0.0, answers_count)
    for now, found in seen:
        watch.see(found, now)
    return watch


def test_ranks_that_stop_making_marks_are_hung_and_the_one_with_the_fewest_is_named() -> None:
    marked = [RankProgress(7, 0.5), RankProgress(6, 0.5)]
    watch = watched((5.0, marked), (30.0, marked), (64.0, marked))
    assert watch.hung(64.9) is None
    assert watch.hung(65.0) == "learner rank 1 finished no micro-batch for 60 s (learner.hung_after_s)"


def test_a_rank_that_does_not_answer_is_named_before_those_that_wait_for_it() -> None:
    watch = watched((5.0, [RankProgress(7, 0.5)] * 2), (70.0, [RankProgress(7, 0.5), None]))
    assert watch.hung(70.0) == "learner rank 1 did not answer for 65 s (learner.hung_after_s)"


def test_a_rank_that_has_never_marked_must_only_answer_so_that_a_first_step_may_compile() -> None:
    slow = [(float(now), [STARTED, STARTED]) for now in range(0, 500, 5)]
    assert watched(*slow).hung(500.0) is None
    assert watched(*slow[:2], (100.0, [STARTED, None])).hung(100.0) is not None


def test_answers_count_in_a_call_without_micro_batches() -> None:
    marked = [RankProgress(7, 0.5)]
    assert watched((5.0, marked), (100.0, marked), answers_count=True).hung(120.0) is None
    assert watched((5.0, marked), (100.0, marked), answers_count=False).hung(120.0) is not None


def test_slow_micro_batches_make_the_limit_ten_times_their_median() -> None:
    marked = [RankProgress(3, 9.0), RankProgress(3, 2.0)]
    watch = watched((5.0, marked))
    assert watch.limit_s == FACTOR * 9.0
    assert watch.hung(94.0) is None and watch.hung(95.0) is not None


@given(
    gaps=st.lists(st.floats(0.1, 59.0), min_size=1, max_size=30),
    hung_after_s=st.floats(60.0, 600.0),
    answers=st.lists(st.booleans(), min_size=30, max_size=30),
)
def test_a_rank_that_marks_within_the_limit_is_never_hung_however_often_an_answer_is_late(
    gaps: list[float], hung_after_s: float, answers: list[bool]
) -> None:
    watch, now = ProgressWatch(hung_after_s, 0.0, False), 0.0
    for k, gap in enumerate(gaps):
        now += gap
        watch.see([RankProgress(k + 1, gap), RankProgress(k + 1, gap) if answers[k] else None], now)
        assert watch.hung(now) is None


def test_marks_count_passes_and_leave_the_time_between_calls_out(monkeypatch) -> None:
    times = iter([0.0, 100.0, 101.0, 103.0, 500.0, 501.0])
    monkeypatch.setattr("learner.progress.time.monotonic", lambda: next(times))
    marks = Marks()
    assert marks.seen() == STARTED
    marks.begin()
    marks.add()
    marks.add()
    marks.begin()
    marks.add()
    assert marks.seen() == RankProgress(3, 1.0)
