"""`rollout.count: auto` on models of a run: it settles, within its bounds, where the learner no longer waits."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.cluster.control.autoscaling import GROW_ABOVE, PATIENCE, STEPS, Autoscaling, StepLoad, StepTimes


def overlapped(train_s: float, work_s: float, turns_s: float = 0.0) -> Callable[[int], StepLoad]:
    """A run at max_staleness 1: play and training overlap. `work_s` is divided among the workers, `turns_s` is not."""

    def load(workers: int) -> StepLoad:
        played = work_s / workers + turns_s
        return StepLoad(workers, max(train_s, played), max(0.0, played - train_s), max(0.0, train_s - played), played)

    return load


def synchronous(train_s: float, work_s: float, turns_s: float = 0.0) -> Callable[[int], StepLoad]:
    """A run at max_staleness 0: play and training take turns."""

    def load(workers: int) -> StepLoad:
        played = work_s / workers + turns_s
        return StepLoad(workers, train_s + played, played, 0.0, played)

    return load


def course(auto: Autoscaling, load: Callable[[int], StepLoad], steps: int, start: int | None = None) -> list[int]:
    """The number of workers in each step; a decision takes two steps to happen."""
    workers, counts = start or auto.low, []
    pending: list[int] = []
    for _ in range(steps):
        counts.append(workers)
        if pending:
            workers = pending.pop() if len(pending) == 1 else workers
            continue
        decision = auto.step(load(workers))
        if decision is not None:
            assert decision.reason and auto.low <= decision.count <= auto.high and decision.count != workers
            pending = [decision.count]
    return counts


def test_it_adds_workers_until_the_learner_waits_no_more_and_stays_there() -> None:
    counts = course(Autoscaling(1, 16), overlapped(train_s=2.0, work_s=12.0), 200)
    assert counts[:STEPS] == [1] * STEPS and counts[-1] in (5, 6)
    assert len(set(counts[-120:])) == 1, "it does not swing"
    assert 12.0 / counts[-1] - 2.0 <= GROW_ABOVE * 12.0 / counts[-1]


IDLE, WAITING = StepLoad(1, 2.0, 0.0, 0.0, 1.0), StepLoad(1, 2.0, 1.0, 0.0, 1.0)
"""Of one worker, for which the learner waits never, and half of the time."""


def test_it_decides_after_as_many_steps_with_one_number_as_it_says_and_the_first_does_not_count() -> None:
    auto = Autoscaling(1, 4)
    *before, decided = [auto.step(WAITING) for _ in range(STEPS + 1)]
    assert before == [None] * STEPS and decided is not None and decided.count == 2
    auto = Autoscaling(1, 4)
    slow = StepLoad(1, 100.0, 100.0, 0.0, 1.0)
    assert [auto.step(load) for load in (slow, *[IDLE] * STEPS)] == [None] * (STEPS + 1)


def test_the_last_step_without_a_decision_is_the_first_of_the_next_ones_and_a_decision_begins_anew() -> None:
    auto = Autoscaling(1, 4)
    assert [auto.step(IDLE) for _ in range(STEPS + 1)] == [None] * (STEPS + 1)
    *before, decided = [auto.step(WAITING) for _ in range(STEPS)]
    assert before == [None] * (STEPS - 1) and decided is not None
    assert [auto.step(WAITING) for _ in range(STEPS)] == [None] * STEPS


def test_it_removes_workers_for_which_finished_groups_only_wait() -> None:
    counts = course(Autoscaling(1, 16), overlapped(train_s=6.0, work_s=12.0), 300, start=8)
    assert counts[-1] == 2 and sorted(counts, reverse=True) == counts


def test_it_takes_back_a_worker_that_saved_nothing_and_is_slow_to_try_again() -> None:
    counts = course(Autoscaling(1, 8), synchronous(train_s=1.0, work_s=0.0, turns_s=9.0), 200)
    grown = [step for step, (before, after) in enumerate(pairwise(counts)) if after > before]
    assert max(counts) == 2 and counts.count(2) < counts.count(1) / 4
    assert all(b - a >= PATIENCE for a, b in pairwise(grown)) and len(grown) <= 3


@pytest.mark.parametrize("model", [overlapped, synchronous])
@settings(max_examples=60, deadline=None)
@given(
    train=st.floats(0.1, 50),
    work=st.floats(0, 500),
    turns=st.floats(0, 20),
    low=st.integers(1, 4),
    room=st.integers(0, 12),
)
def test_whatever_a_run_costs_the_number_settles_within_its_bounds(model, train, work, turns, low, room) -> None:
    counts = course(Autoscaling(low, low + room), model(train, work, turns), 600)
    assert all(low <= count <= low + room for count in counts)
    changes = sum(a != b for a, b in pairwise(counts[-150:]))
    assert changes <= 4, "at most one trial in so many steps, and its end"


def test_a_number_that_cannot_be_had_is_not_asked_for_again_soon() -> None:
    auto, load, asked = Autoscaling(1, 4), overlapped(1.0, 8.0), 0
    for _ in range(PATIENCE + STEPS):
        decision = auto.step(load(1))
        if decision is not None:
            asked += decision.count == 2
            auto.refused(decision.count)
    assert asked == 1


def test_each_refusal_of_a_number_doubles_the_steps_until_it_is_asked_for_again_up_to_a_bound() -> None:
    auto, asked = Autoscaling(1, 2), list[int]()
    for step in range(2000):
        if auto.step(WAITING) is not None:
            asked.append(step)
            auto.refused(2)
    assert [later - before for before, later in pairwise(asked)] == [41, 81, 161, 321, 641, 641]


def decided(auto: Autoscaling, load: StepLoad) -> int | None:
    """The number of workers decided on after as many such steps as a decision takes; None if it stays."""
    *_, decision = [auto.step(load) for _ in range(STEPS + 1)]
    return None if decision is None else decision.count


@pytest.mark.parametrize(("workers", "grown"), [(1, 2), (3, 4), (7, 8), (8, 10), (11, 13), (12, 14), (14, None)])
def test_a_quarter_more_workers_are_wanted_at_least_one_and_at_most_as_many_as_there_may_be(workers, grown) -> None:
    assert decided(Autoscaling(1, 14), StepLoad(workers, 10.0, 2.1, 0.0, 9.0)) == grown
    assert decided(Autoscaling(workers, 14), StepLoad(workers, 10.0, 2.0, 0.0, 9.0)) is None, "20% is not above 20%"


def test_where_the_wanted_number_cannot_be_had_the_next_smaller_one_is_chosen() -> None:
    auto = Autoscaling(1, 14)
    auto.refused(10)
    assert decided(auto, StepLoad(8, 10.0, 5.0, 0.0, 9.0)) == 9


@pytest.mark.parametrize(("played_s", "count"), [(5.0, None), (4.9, 1)])
def test_a_worker_goes_if_the_learner_would_then_wait_for_less_than_a_tenth_of_the_time(played_s, count) -> None:
    """With one worker less, play takes `played_s` longer, of which groups wait for 4 s now: 1 s of 10 is a tenth."""
    assert decided(Autoscaling(1, 2), StepLoad(2, 9.0, 0.0, 4.0, played_s)) == count
    assert decided(Autoscaling(2, 2), StepLoad(2, 9.0, 0.0, 4.0, played_s)) is None


@pytest.mark.parametrize(
    ("before", "now_s", "count"),
    [
        (StepLoad(4, 40.0, 10.0, 0.0, 20.0), 9.0, None),  # play gets 4 s shorter: 1 s is a quarter of it
        (StepLoad(4, 40.0, 10.0, 0.0, 20.0), 9.1, 4),
        (StepLoad(4, 4.0, 1.0, 0.0, 20.0), 0.75, None),  # the learner waited for 1 s only
        (StepLoad(4, 4.0, 1.0, 0.0, 20.0), 0.8, 4),
    ],
)
def test_a_growth_is_kept_if_it_saved_a_quarter_of_what_it_could(before: StepLoad, now_s: float, count) -> None:
    auto = Autoscaling(4, 5)
    assert decided(auto, before) == 5
    assert decided(auto, StepLoad(5, before.seconds, now_s, 0.0, before.played_s)) == count


def test_a_growth_after_which_the_learner_waits_longer_is_said_to_have_saved_nothing() -> None:
    auto = Autoscaling(4, 5)
    assert decided(auto, StepLoad(4, 40.0, 10.0, 0.0, 20.0)) == 5
    *_, decision = [auto.step(StepLoad(5, 40.0, 12.0, 0.0, 20.0)) for _ in range(STEPS + 1)]
    assert (
        decision is not None and "saved 0 s of the 10 s" in decision.reason and "4 s were expected" in decision.reason
    )


def test_the_times_of_a_step_say_who_waited_for_whom() -> None:
    waited = StepTimes(issued=10.0, played=16.0, asked=12.0).load(2, 9.0)
    assert waited == StepLoad(2, 9.0, 4.0, 0.0, 6.0), "the learner was free at 12 and got the last group at 16"
    queued = StepTimes(issued=10.0, played=16.0, asked=19.0).load(2, 9.0)
    assert queued == StepLoad(2, 9.0, 0.0, 3.0, 6.0)
    early = StepTimes(issued=10.0, played=16.0, asked=8.0).load(2, 9.0)
    assert early == StepLoad(2, 9.0, 6.0, 0.0, 6.0), "it cannot wait for what is not issued"
    assert StepTimes(issued=10.0, asked=9.0).load(2, 9.0) is None, "nothing was played"
