"""The fixed probe against channels whose information is known, its intervals, its null, and evaluations of tasks
lost."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.channels.links import draw_probe as evaluate
from research.channels.links import probe_channel as channel
from research.channels.links import probe_information as information
from squelch.kit.diagnosis.fixed_probe import SATURATED_NATS, read_probe, saturated
from squelch.kit.diagnosis.pair_budget import draw_pairs


@pytest.mark.parametrize(("num_tasks", "samples"), [(8, 2), (8, 4), (32, 2), (32, 4)])
@pytest.mark.slow
def test_the_estimate_is_unbiased_for_its_tasks_and_its_interval_covers_their_information(num_tasks, samples):
    covered: list[bool] = []
    for number in range(4):
        log_p = channel(num_tasks, 1.0, number)
        truth, found = information(log_p), [evaluate(log_p, samples, seed, nulls=False) for seed in range(100)]
        values = np.array([one.mi.value for one in found])
        assert abs(values.mean() - truth) < 4 * values.std() / math.sqrt(len(values))
        intervals = [one.mi.interval() for one in found]
        covered += [interval is not None and interval.low <= truth <= interval.high for interval in intervals]
    assert 0.90 <= np.mean(covered) <= 0.98


@pytest.mark.slow
def test_own_left_out_bounds_the_information_of_the_distribution_from_above_and_the_estimate_from_below():
    strings, population = 12, channel(4_000, 1.0, seed=5, strings=12)
    truth = information(population)
    rng = np.random.default_rng(1)
    found = [evaluate(population[rng.choice(len(population), 8, replace=False)], 4, seed) for seed in range(300)]
    assert np.mean([one.mi.value for one in found]) < truth < np.mean([one.upper.value for one in found])
    assert strings and all(one.mi.value <= one.ceiling + 1e-9 for one in found)


@pytest.mark.slow
def test_reasoning_that_ignores_its_prompt_is_seldom_significant_under_a_budget_too():
    log_p = channel(16, 0.0, seed=7) + np.zeros((16, 1))
    for others in (None, 5):
        nulls = [evaluate(log_p, 2, seed, others).null for seed in range(200)]
        assert np.mean([null is not None and null.p_value <= 0.05 for null in nulls]) <= 0.08
    null = evaluate(channel(16, 1.0, seed=7), 4, 0, 5).null
    assert null is not None and null.p_value <= 0.005


@pytest.mark.slow
def test_a_budget_changes_the_spread_of_the_estimate_and_hardly_its_mean():
    log_p = channel(32, 1.0, seed=9)
    whole = np.mean([evaluate(log_p, 2, seed).mi.value for seed in range(200)])
    part = np.mean([evaluate(log_p, 2, seed, 7).mi.value for seed in range(200)])
    assert abs(part - whole) < 0.03


def test_an_estimate_near_the_logarithm_of_the_number_of_tasks_is_saturated():
    certain = np.log(np.full((8, 8), 1e-6) + np.eye(8))
    found = evaluate(certain - np.log(np.exp(certain).sum(axis=1, keepdims=True)), 2, 0)
    assert found.metrics()["saturated"] == 1.0 and found.ceiling == pytest.approx(math.log(8))
    assert not saturated(math.log(8) - SATURATED_NATS - 1e-9, math.log(8))
    assert evaluate(channel(8, 0.2, 1), 2, 0).metrics()["saturated"] == 0.0


@given(
    st.lists(st.integers(1, 4), min_size=3, max_size=6),
    st.lists(st.integers(0, 3), min_size=24, max_size=24),
    st.integers(0, 99),
)
def test_reasoning_that_names_its_prompt_reaches_the_ceiling_however_often_tasks_repeat(multiplicity, counts, seed):
    prompt = np.repeat(np.arange(len(multiplicity)), multiplicity)
    counts = [3, *counts[1 : len(prompt)]]
    task, weights = np.repeat(np.arange(len(prompt)), counts), np.array(multiplicity, dtype=float)
    matrix = np.where(np.arange(len(multiplicity)) == prompt[task][:, None], -3.0, -500.0)
    some = np.where(draw_pairs(prompt[task], len(multiplicity), 2, (seed,)), matrix, np.nan)
    for pairs in (matrix, some):
        found = read_probe(pairs, np.ones(len(task)), prompt[task], task, list(map(str, prompt)), weights, nulls=False)
        assert found.mi.value == pytest.approx(found.ceiling) and found.metrics()["saturated"] == 1.0
    shares = (weights / weights.sum())[prompt[np.array(counts) > 0]]
    assert found.ceiling == pytest.approx(-np.log(shares).mean()), "of the tasks with a reasoning"


def test_a_change_is_paired_by_task_and_survives_json_and_tasks_that_were_lost():
    log_p = channel(8, 1.0, seed=2)
    first, second = evaluate(log_p, 4, 1), evaluate(log_p, 4, 2)
    earlier = json.loads(json.dumps(first.state()))
    change = second.change_since(earlier)
    assert change["mi_change"] == pytest.approx(second.mi.value - first.mi.value)
    assert change["mi_change_low"] < change["mi_change"] < change["mi_change_high"]
    error = math.sqrt(first.mi.variance.sum() + second.mi.variance.sum()) / 8
    assert change["mi_change_standard_error"] == pytest.approx(error)
    assert second.change_since(second.state())["mi_change"] == 0.0
    lost = earlier | {"mean": [None, *earlier["mean"][1:]], "variance": [None, *earlier["variance"][1:]]}
    lost["count"] = [0, *earlier["count"][1:]]
    left = (second.mi.mean - first.mi.mean)[1:].mean()
    assert second.change_since(lost)["mi_change"] == pytest.approx(left)
    assert math.isnan(second.change_since(earlier | {"tasks": ["other"] * 8})["mi_change"])


@given(st.lists(st.integers(0, 3), min_size=6, max_size=6).filter(lambda counts: sum(counts) > 0), st.integers(0, 99))
def test_any_number_of_reasonings_a_task_gives_bounded_finite_estimates(counts, seed):
    log_p = channel(6, 1.0, seed)
    task = np.repeat(np.arange(6), counts)
    rng = np.random.default_rng(seed)
    matrix = log_p[:, [rng.choice(12, p=np.exp(log_p[i])) for i in task]].T
    found = read_probe(matrix, np.ones(len(task)), task, task, [str(i) for i in range(6)], np.ones(6))
    assert found.mi.value <= found.ceiling + 1e-9 and math.isfinite(found.upper.value)
    assert (found.mi.interval() is not None) == any(count > 1 for count in counts)
    assert (found.null is not None) == (np.count_nonzero(counts) >= 4)


def test_equal_prompts_are_one_column_and_left_out_together():
    log_p = channel(4, 1.0, seed=4)
    task = np.repeat(np.arange(8), 2)
    rng = np.random.default_rng(0)
    drawn = [rng.choice(12, p=np.exp(log_p[i // 2])) for i in task]
    names = [str(i) for i in range(8)]
    merged = read_probe(log_p[:, drawn].T, np.ones(16), task // 2, task, names, np.full(4, 2.0))
    assert merged.ceiling == pytest.approx(math.log(4)), "the ceiling counts distinct prompts"
    spread = np.repeat(log_p, 2, axis=0)
    apart = read_probe(spread[:, drawn].T, np.ones(16), task, task, names, np.ones(8))
    assert merged.mi.value == pytest.approx(apart.mi.value)


def test_an_evaluation_without_reasonings_or_with_one_prompt_is_refused():
    with pytest.raises(ValueError, match="0 reasonings and 3 prompts"):
        read_probe(np.zeros((0, 3)), np.ones(0), np.zeros(0, int), np.zeros(0, int), ["a", "b", "c"], np.ones(3))
    with pytest.raises(ValueError, match="1 prompts"):
        read_probe(np.zeros((2, 1)), np.ones(2), np.zeros(2, int), np.zeros(2, int), ["a"], np.ones(1))
