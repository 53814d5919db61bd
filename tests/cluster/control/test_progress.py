"""When an actor counts as hung: by their marks, or by their answers where there are no marks yet."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from squelch.cluster.control.progress import FACTOR, Patience, ProgressWatch
from squelch.kit.process.processor_wait import ProcessorWait
from squelch.kit.process.progress_marks import Marks, Progress

STARTED = Progress(0, 0.0)
RANKS = ["learner rank 0", "learner rank 1"]
PATIENCE = Patience(60.0, "micro-batch", "learner.hung_after_s")


def watched(*seen: tuple[float, list[Progress | None]], answers_count: bool = False) -> ProgressWatch:
    watch = ProgressWatch(RANKS, PATIENCE, 0.0, answers_count)
    for now, found in seen:
        watch.see(found, now)
    return watch


def test_ranks_that_stop_making_marks_are_hung_and_the_one_with_the_fewest_is_named() -> None:
    marked = [Progress(7, 0.5), Progress(6, 0.5)]
    watch = watched((5.0, marked), (30.0, marked), (64.0, marked))
    assert watch.hung(64.9) is None
    assert watch.hung(65.0) == "learner rank 1 finished no micro-batch for 60 s (learner.hung_after_s)"


def test_an_actor_has_as_many_marks_as_the_process_that_made_most() -> None:
    assert watched().marks == 0 and watched((5.0, [Progress(6, 0.5), Progress(7, 0.5)])).marks == 7


def test_a_rank_that_does_not_answer_is_named_before_those_that_wait_for_it() -> None:
    watch = watched((5.0, [Progress(7, 0.5)] * 2), (70.0, [Progress(7, 0.5), None]))
    assert watch.hung(70.0) == "learner rank 1 did not answer for 65 s (learner.hung_after_s)"


def test_a_rank_that_has_never_marked_must_only_answer_so_that_a_first_step_may_compile() -> None:
    slow = [(float(now), [STARTED, STARTED]) for now in range(0, 500, 5)]
    assert watched(*slow).hung(500.0) is None
    assert watched(*slow[:2], (100.0, [STARTED, None])).hung(100.0) is not None


def test_answers_count_in_a_call_without_micro_batches() -> None:
    marked = [Progress(7, 0.5)]
    assert watched((5.0, marked), (100.0, marked), answers_count=True).hung(120.0) is None
    assert watched((5.0, marked), (100.0, marked), answers_count=False).hung(120.0) is not None


def test_slow_micro_batches_make_the_limit_ten_times_their_median() -> None:
    marked = [Progress(3, 9.0), Progress(3, 2.0)]
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
    watch, now = ProgressWatch(RANKS, Patience(hung_after_s, "micro-batch", "x"), 0.0), 0.0
    for k, gap in enumerate(gaps):
        now += gap
        watch.see([Progress(k + 1, gap), Progress(k + 1, gap) if answers[k] else None], now)
        assert watch.hung(now) is None


def test_marks_count_passes_and_leave_the_time_between_calls_out(monkeypatch) -> None:
    times = iter([0.0, 0.0, 100.0, 101.0, 103.0, 500.0, 501.0])
    monkeypatch.setattr("squelch.kit.process.progress_marks.time.monotonic", lambda: next(times))
    marks = Marks()
    monkeypatch.setattr(ProcessorWait, "seconds", lambda self: 2.5)
    assert marks.seen() == Progress(0, 0.0, waited_s=2.5)
    marks.begin()
    marks.add()
    marks.add()
    marks.begin()
    marks.add()
    assert marks.seen() == Progress(3, 1.0, waited_s=2.5)


def test_time_without_a_processor_does_not_count_and_is_that_of_the_rank_that_had_none_for_longest() -> None:
    before, after = [Progress(7, 0.5, waited_s=200.0)] * 2, [Progress(7, 0.5, waited_s=w) for w in (210.0, 240.0)]
    watch = watched((5.0, before), (70.0, after))
    assert watch.silence_s(70.0) == 25.0
    assert watch.hung(104.9) is None
    assert watch.hung(105.0) == "learner rank 0, learner rank 1 finished no micro-batch for 60 s (learner.hung_after_s)"
    watch.see([Progress(8, 0.5, waited_s=240.0)] * 2, 105.0)
    assert watch.hung(164.9) is None and watch.hung(165.0) is not None, "a mark starts the limit over"
    fresh = watched((5.0, before), (70.0, [Progress(7, 0.5)] * 2))
    assert fresh.silence_s(70.0) == 65.0, "a process that has been replaced has waited for less"


def test_an_idle_actor_must_only_answer_and_is_hung_as_long_after_its_last_answer_once_it_has_work() -> None:
    idle, busy = Progress(7, 0.5, busy=False), Progress(7, 0.5, busy=True)
    watch = watched(*((float(now), [idle, idle]) for now in range(0, 500, 5)), (500.0, [busy, busy]))
    assert watch.hung(554.0) is None
    assert watch.hung(555.0) == "learner rank 0, learner rank 1 finished no micro-batch for 60 s (learner.hung_after_s)"
    assert watched((0.0, [idle, idle]), (60.0, [None, idle])).hung(60.0) is not None


def test_a_process_that_may_just_have_been_created_has_until_its_start_is_late_and_then_the_usual_limit() -> None:
    watch = ProgressWatch(["scorer"], Patience(60.0, "batch", "cluster.hung_after_s", start_s=300.0), 0.0)
    watch.see([None], 250.0)
    assert watch.hung(299.0) is None and watch.hung(300.0) == "scorer did not answer for 300 s (cluster.hung_after_s)"
    watch.see([Progress(0, 0.0, busy=False)], 280.0)
    watch.see([None], 339.0)
    assert watch.hung(339.0) is None and watch.hung(340.0) is not None
