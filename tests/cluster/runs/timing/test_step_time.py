"""The model of a step's time: its bounds, its fit, and a simulation of the loop that it must agree with."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from squelch.cluster.runs.timing.step_time import NEARLY, Observed, StepModel, fitted, observed

SECONDS = st.floats(0.01, 100.0)
MODELS = st.builds(StepModel, st.integers(1, 64), SECONDS, SECONDS, SECONDS, SECONDS, SECONDS)


@settings(max_examples=40)
@given(MODELS, st.integers(1, 100), st.integers(0, 3))
@example(StepModel(1, 1.0, 16.0, 1.0, 1.0, 9.0), 1, 3)  # the steps that are followed end with work done in advance
def test_a_step_lies_between_its_bound_and_the_time_without_overlap(
    model: StepModel, workers: int, staleness: int
) -> None:
    step = model.step(workers, staleness)
    assert model.bound(workers, staleness) <= step <= model.step(workers, 0) * (1 + 1e-6)
    assert model.step(workers + 1, 0) <= model.step(workers, 0)
    assert 0 <= model.idle_learner(workers, staleness) < 1 and 0 <= model.idle_workers(workers, staleness) <= 1


@settings(max_examples=15)
@given(MODELS, st.integers(0, 2))
def test_enough_workers_nearly_reach_the_best(model: StepModel, staleness: int) -> None:
    best = min(model.step(workers, staleness) for workers in (1, 2, 5, (staleness + 1) * model.groups))
    assert model.step(model.enough(staleness), staleness) <= NEARLY * best * (1 + 1e-9)


@pytest.mark.parametrize(("serial", "parallel", "learner"), [(0.0, 8.0, 1.0), (0.0, 1.0, 3.0), (6.0, 0.5, 2.0)])
def test_a_step_with_one_clear_limit_is_at_its_bound(serial: float, parallel: float, learner: float) -> None:
    model = StepModel(8, serial, parallel, learner, 0.0, 0.0)
    assert model.step(1, 2) == pytest.approx(model.bound(1, 2), rel=0.05)


def test_two_equal_stages_overlap_nearly_whole_at_staleness_1() -> None:
    model = StepModel(8, 0.0, 2.0, 2.0, 0.0, 0.0)
    assert model.step(1, 0) == 4.0 and 2.0 <= model.step(1, 1) <= 2.3


def test_more_workers_than_groups_do_not_shorten_a_window_and_odd_ones_wait_for_the_busiest() -> None:
    model = StepModel(8, 1.0, 8.0, 1.0, 0.0, 0.0)
    assert [model.window(workers) for workers in (1, 2, 3, 4, 5, 7, 8, 9)] == [9, 5, 4, 3, 3, 3, 2, 2]
    assert model.limit(1, 0) == "rollout workers" and model.limit(8, 0) == "one another" and model.enough(0) == 8
    assert StepModel(8, 1.0, 8.0, 10.0, 0.0, 0.0).limit(1, 1) == "learner"


def run_of(workers: int, windows: list[float], tokens: list[float]) -> Observed:
    return Observed(workers, 8, tuple(windows), tuple(tokens), 2.0, 0.25, 0.125)


@given(st.floats(0.1, 50.0), st.floats(0.1, 50.0))
def test_runs_with_several_numbers_of_workers_give_the_constants_back(serial: float, parallel: float) -> None:
    truth = StepModel(8, serial, parallel, 2.0, 0.25, 0.125)
    model = fitted([run_of(workers, [truth.window(workers)] * 5, [100.0] * 5) for workers in (1, 2, 3)])
    assert (model.serial, model.parallel) == pytest.approx((serial, parallel), rel=1e-6)
    assert (model.learner, model.split) == (2.375, "measured with 1, 2, 3 workers")


def test_one_run_separates_them_by_its_tokens_or_says_that_it_cannot() -> None:
    tokens = [float(count) for count in range(800, 1300, 50)]
    varied = fitted([run_of(2, [1.0 + count / 500 for count in tokens], tokens)])
    assert varied.serial == pytest.approx(1.0) and varied.window(2) == pytest.approx(1.0 + 1025 / 500)
    assert varied.split == "estimated from 10 steps of 800 to 1250 tokens"
    same = fitted([run_of(2, [3.0] * 10, [1000.0] * 10)])
    assert (same.serial, same.parallel) == (0.0, 6.0) and same.split.startswith("not known")


def test_a_window_that_shrinks_with_fewer_workers_or_more_than_in_proportion_gives_no_negative_constant() -> None:
    slower = fitted([run_of(1, [2.0] * 5, [1.0] * 5), run_of(2, [3.0] * 5, [1.0] * 5)])
    faster = fitted([run_of(1, [4.0] * 5, [1.0] * 5), run_of(2, [1.0] * 5, [1.0] * 5)])
    assert (slower.serial, slower.parallel) == (2.5, 0.0) and faster.serial == 0.0 < faster.parallel


def line(step: int, rollout: float = 3.0, **others: float) -> dict[str, float]:
    times = {"seconds/step": 6.0, "seconds/rollout": rollout, "seconds/train": 2.0, "seconds/publish": 0.5}
    return {"step": step, "tokens/sampled": 1000.0, "up/rollout-0": 1.0, "up/env-0": 1.0, **times, **others}


def test_steps_that_hide_a_part_of_the_play_are_left_out() -> None:
    lines = [line(1, 9.0), line(2), line(3, **{"seconds/validation": 4.0}), line(4, 0.1)]
    lines += [line(5), line(6), line(7, 0.2, **{"seconds/checkpoint": 1.0}), line(8)]
    (found,) = observed([{"step": 0}, *lines], 8)
    assert found.windows == (3.0,) * 5 and found.workers == 1
    assert (found.train, found.publish, found.other) == (2.0, 0.5, 0.5)
    with pytest.raises(ValueError, match="1 of 2 steps are usable; at least 4"):
        observed([line(1), line(2)], 8)


def test_a_larger_step_has_more_to_divide_and_to_train_on() -> None:
    model = StepModel(8, 1.0, 8.0, 2.0, 0.5, 0.25).scaled(16, 2.0)
    assert (model.groups, model.serial, model.parallel, model.train, model.publish) == (16, 1.0, 32.0, 8.0, 0.5)


def test_a_run_that_was_scaled_gives_its_times_for_each_number_of_workers() -> None:
    two = {"up/rollout-1": 1.0}
    lines = [*(line(step) for step in range(1, 7)), *(line(step, 2.0, **two) for step in range(7, 12))]
    lines += [line(12, 2.5, **two, **{"up/rollout-2": 1.0}), line(13, **{"up/rollout-1": 0.0})]
    assert [(found.workers, len(found.windows)) for found in observed(lines, 8)] == [(1, 6), (2, 5)]
