"""Policy variance: unbiased where plans are fixed beforehand, and its scores, refusals and metrics."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from squelch.kit.filter.measure import GroupStatistics, measure
from squelch.kit.filter.noise_metrics import noise_metrics
from squelch.kit.filter.policy_variance import (
    STANDARD_ERRORS,
    policy_variance,
    significant_policy_variance,
    standard_error,
)
from squelch.kit.filter.settings import DEFAULT_REPLAYS, FilterConfig
from squelch.kit.filter.statistics import STATISTICS, sample_variance
from squelch.kit.filter.windows import make_window
from squelch.kit.records.records import GroupSummary, replay_matrix
from tests.kit.filter.summaries import summary

CONFIG = FilterConfig(statistic="policy_variance")
SHAPES = st.tuples(st.integers(3, 6), st.integers(2, 4), st.integers(0, 2**32 - 1))


def by_definition(returns: np.ndarray) -> float:
    """V of one group, (G, R), as the formula states it."""
    size, count = returns.shape
    means = [row.sum() / count for row in returns]
    between = sum((one - sum(means) / size) ** 2 for one in means) / (size - 1)
    within = sum(sum((y - one) ** 2 for y in row) / (count - 1) for row, one in zip(returns, means, strict=True))
    return between - within / (size * count)


@given(SHAPES)
def test_it_is_the_formula_and_its_error_the_jackknife(shape) -> None:
    size, count, seed = shape
    returns = np.random.default_rng(seed).normal(size=(2, size, count))
    for row, found, error in zip(returns, policy_variance(returns), standard_error(returns), strict=True):
        left_out = [by_definition(np.delete(row, g, axis=0)) for g in range(size)]
        mean = sum(left_out) / size
        assert found == pytest.approx(by_definition(row))
        assert error == pytest.approx(math.sqrt((size - 1) / size * sum((one - mean) ** 2 for one in left_out)))


@given(SHAPES, st.floats(-5, 5))
def test_it_depends_on_neither_order_nor_a_constant_and_grows_with_the_square_of_rewards(shape, constant) -> None:
    size, count, seed = shape
    rng = np.random.default_rng(seed)
    returns = rng.normal(size=(1, size, count))
    other = 3 * rng.permuted(returns[:, rng.permutation(size)], axis=2) + constant
    for of in (policy_variance, standard_error):
        assert of(other)[0] == pytest.approx(9 * of(returns)[0], abs=1e-9)


@given(SHAPES)
def test_without_noise_it_is_the_reward_variance(shape) -> None:
    size, count, seed = shape
    plain = np.random.default_rng(seed).normal(size=(1, size))
    assert policy_variance(np.repeat(plain[:, :, None], count, axis=2)) == pytest.approx(sample_variance(plain))


@given(st.lists(st.floats(0, 1), min_size=2, max_size=3), st.integers(2, 3))
@settings(max_examples=30, deadline=None)
def test_it_is_unbiased_by_enumeration_of_all_plans_and_all_noise(chances: list[float], count: int) -> None:
    """Plans are drawn from a uniform distribution over `chances`, the probabilities with which they are paid 1. Every
    group of three plans and every outcome of their replays is enumerated with its probability."""
    expected, num_plans = 0.0, len(chances)
    outcomes = list(itertools.product([0.0, 1.0], repeat=3 * count))
    returns = np.array(outcomes).reshape(-1, 3, count)
    found = policy_variance(returns)
    for plans in itertools.product(range(num_plans), repeat=3):
        p = np.array([chances[plan] for plan in plans])[None, :, None]
        probability = np.where(returns == 1, p, 1 - p).prod(axis=(1, 2))
        expected += float(probability @ found) / num_plans**3
    assert expected == pytest.approx(float(np.var(chances)), abs=1e-9)


def test_the_plain_variance_of_the_same_returns_is_not_unbiased() -> None:
    rng = np.random.default_rng(0)
    returns = (rng.random((4000, 16, 4)) < 0.3).astype(float)
    plain, corrected = sample_variance(returns[:, :, 0]).mean(), policy_variance(returns).mean()
    assert plain == pytest.approx(0.21, abs=0.01) and corrected == pytest.approx(0.0, abs=0.003)


# --- scores and refusals ---


def replayed(rewards: list[float], replays: np.ndarray, name: str = "000003-001") -> GroupSummary:
    return replace(summary(rewards, name), replays=replays.shape[1], replay_returns=replays)


def noisy_group(rng: np.random.Generator, chances: list[float], count: int, name: str) -> GroupSummary:
    p = np.array(chances)
    returns = (rng.random((len(p), count)) < p[:, None]).astype(float)
    return replayed((rng.random(len(p)) < p).astype(float).tolist(), returns, name)


def test_a_group_scores_its_policy_variance_if_that_is_significant_and_else_zero() -> None:
    rng = np.random.default_rng(1)
    groups = [noisy_group(rng, [0.05] * 8 + [0.95] * 8, 8, "3-0"), noisy_group(rng, [0.5] * 16, 8, "3-1")]
    scores = measure([GroupStatistics.of(group) for group in groups], "policy_variance").scores
    returns = np.array([group.replay_returns for group in groups])
    found, error = policy_variance(returns), standard_error(returns)
    assert found[0] > STANDARD_ERRORS * error[0] and found[1] <= STANDARD_ERRORS * error[1]
    np.testing.assert_array_equal(scores, significant_policy_variance(returns))
    assert scores[0] == found[0] and scores[1] == 0


def test_the_filter_keeps_the_group_whose_plans_differ_and_says_why_it_drops_the_noise() -> None:
    rng = np.random.default_rng(1)
    window = make_window(CONFIG)
    window.admit(noisy_group(rng, [0.05] * 8 + [0.95] * 8, 8, "3-0"))
    window.admit(noisy_group(rng, [0.5] * 16, 8, "3-1"))
    decision = window.close(3, final=True)
    assert [one.group_id for one in decision.kept] == ["3-0"]
    (dropped,) = decision.dropped
    assert (dropped.code, dropped.reason) == (
        "zero",
        "policy variance not significant (at most 2 standard errors), or zero reward variance",
    )
    assert dropped.reward_variance > 0.2, "the plain statistic would have kept it"


def test_a_group_whose_trained_returns_are_equal_has_no_signal_whatever_its_replays_say() -> None:
    """Found by a reviewer: all advantages of such a group are 0, so that only the regularisers would train."""
    rng = np.random.default_rng(1)
    group = noisy_group(rng, [0.05] * 8 + [0.95] * 8, 8, "3-0")
    equal = replace(group, returns=np.ones(16))
    assert significant_policy_variance(np.array([equal.replay_returns]))[0] > 0.1
    assert measure([GroupStatistics.of(equal)], "policy_variance").scores.tolist() == [0.0]
    window = make_window(CONFIG.model_copy(update={"on_no_signal": "passthrough"}))
    window.admit(equal)
    decision = window.close(3, final=True)
    assert [(one.code, one.reward_variance) for one in decision.decisions] == [("passthrough", 0.0)]


@given(st.lists(st.lists(st.sampled_from([0.0, 1.0, 0.5]), min_size=3, max_size=5), min_size=1, max_size=5))
def test_without_declared_noise_it_decides_as_reward_variance(rows: list[list[float]]) -> None:
    groups = [replayed(row, np.zeros((len(row), 0)), f"3-{i}") for i, row in enumerate(rows)]
    decided = []
    for config in (CONFIG, FilterConfig()):
        window = make_window(config)
        for group in groups:
            window.admit(group)
        decided.append([replace(one, reason="") for one in window.close(3, final=True).decisions])
    assert decided[0] == decided[1]


def test_a_trajectory_whose_replays_failed_is_left_out_of_the_score_and_too_few_refuse_the_group() -> None:
    rng = np.random.default_rng(2)
    whole = rng.normal(size=(5, 3))
    missing = np.vstack([whole, np.full((2, 3), np.nan)])
    found = measure([GroupStatistics.of(replayed([1.0] * 7, missing))], "policy_variance")
    assert found.scores == significant_policy_variance(whole[None]) and found.refusals == [None]
    missing[2:] = np.nan
    refused = measure([GroupStatistics.of(replayed([1.0] * 7, missing))], "policy_variance")
    assert refused.refusals == ["replays of 2 trajectories of 7, needs 3"] and np.isnan(refused.scores).all()
    failed = replace(GroupStatistics.of(replayed([1.0] * 7, missing)), replay_failure="OSError: gone")
    (refusal,) = measure([failed], "policy_variance").refusals
    assert refusal == "replays of 2 trajectories of 7, needs 3; a replay failed: OSError: gone"
    none = GroupStatistics.of(replayed([math.nan] * 4, np.zeros((0, 3))))
    assert measure([none], "policy_variance").refusals == ["0 survivors of 4, needs 3"]


def test_a_failed_trajectory_does_not_count() -> None:
    rng = np.random.default_rng(3)
    returns = rng.normal(size=(4, 2))
    group = replayed([1.0, math.nan, 0.0, 1.0, 0.0], returns)
    assert measure([GroupStatistics.of(group)], "policy_variance").scores == significant_policy_variance(returns[None])
    few = replayed([1.0, math.nan, 0.0, math.nan], np.zeros((2, 0)))
    assert measure([GroupStatistics.of(few)], "policy_variance").refusals == [None], "as reward_variance: two suffice"


def test_groups_of_every_shape_are_measured_as_if_alone() -> None:
    rng = np.random.default_rng(4)
    shapes = [(3, 2), (5, 2), (3, 4), (4, 0), (5, 2)]
    groups = [
        GroupStatistics.of(replayed(rng.normal(size=size).tolist(), rng.normal(size=(size, count)), f"3-{i}"))
        for i, (size, count) in enumerate(shapes)
    ]
    together = measure(groups, "policy_variance").scores
    assert together.tolist() == [measure([group], "policy_variance").scores[0] for group in groups]


def test_a_return_that_is_not_finite_names_its_trajectory() -> None:
    returns = np.ones((5, 2))
    returns[0], returns[3, 1] = np.nan, np.inf
    found = measure([GroupStatistics.of(replayed([1.0] * 5, returns))], "policy_variance")
    assert found.refusals == ["non-finite policy_variance in trajectory 3"]


def test_groups_without_replays_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"policy_variance needs `replay_returns` of shape \(num_groups, "):
        measure([GroupStatistics.of(summary([1.0, 0.0, 1.0]))], "policy_variance")


# --- settings ---


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"replays": 1}, "greater than or equal to 2"),
        ({"statistic": "policy_variance", "replays": 0}, "greater than or equal to 2"),
        ({"statistic": "policy_variance", "rule": "none"}, "selects nothing with rule=none; set filter.replays=4"),
        ({"statistic": "policy_variance", "compat": "ragen"}, "is not in the authors' code; set filter.compat=paper"),
    ],
)
def test_settings_that_contradict_replays_are_refused(given, says) -> None:
    with pytest.raises(ValidationError, match=says):
        FilterConfig(**given)


def test_replays_are_played_where_the_statistic_or_the_user_asks() -> None:
    assert FilterConfig().num_replays == 0
    assert CONFIG.num_replays == DEFAULT_REPLAYS >= 2
    assert FilterConfig(rule="none", replays=3).num_replays == 3
    assert STATISTICS["policy_variance"].needs == 3


# --- metrics ---


def test_metrics_are_unclipped_and_split_the_reward_variance_into_policy_and_noise() -> None:
    rng = np.random.default_rng(5)
    groups = [noisy_group(rng, [0.5] * 16, 4, f"3-{i}") for i in range(400)]
    found = noise_metrics(groups)
    returns = np.array([group.replay_returns for group in groups])
    assert found["policy_variance_mean"] == pytest.approx(policy_variance(returns).mean())
    assert (policy_variance(returns) < 0).any(), "some are negative, and count as they are"
    assert abs(found["policy_variance_mean"]) < 3 * found["policy_variance_error"] < 0.01
    assert found["noise_variance_mean"] == pytest.approx(0.25, abs=0.01)
    assert abs(found["replay_gap_mean"]) < 3 * found["replay_gap_error"] < 0.05
    assert (found["replays"], found["replays_failed"]) == (400 * 16 * 4, 0)


def test_the_gap_shows_plans_that_reacted() -> None:
    groups = [replayed([1.0] * 3, np.zeros((3, 2)), f"3-{i}") for i in range(4)]
    assert noise_metrics(groups)["replay_gap_mean"] == -1


def test_metrics_count_failed_replays_and_are_absent_without_replays() -> None:
    returns = np.array([[1.0, 0.0], [math.nan, math.nan], [1.0, 1.0]])
    found = noise_metrics([replace(replayed([1.0, 0.0, 1.0], returns), seconds_replays=0.5)])
    assert (found["replays"], found["replays_failed"], found["replay_seconds"]) == (4, 2, 0.5)
    assert math.isnan(found["policy_variance_mean"]) and math.isnan(found["replay_gap_error"])
    assert noise_metrics([summary([1.0, 0.0])]) == {}
    quiet = noise_metrics([replayed([1.0, 0.0], np.zeros((2, 0)))])
    assert (quiet["policy_variance_mean"], quiet["noise_variance_mean"], quiet["replays"]) == (0.5, 0.0, 0)
    assert math.isnan(quiet["replay_gap_mean"])


def test_a_variance_that_is_rounding_alone_is_not_significant() -> None:
    """Found by a reviewer: twelve returns of 0.1 have a sample variance of 2e-34."""
    equal = replayed([0.1] * 12, np.zeros((12, 0)))
    assert sample_variance(equal.returns[None])[0] > 0
    assert noise_metrics([equal])["policy_variance_told_groups"] == 0


def test_the_matrix_of_replays_has_rows_of_nan_for_those_that_failed() -> None:
    np.testing.assert_array_equal(replay_matrix([(1.0, 2.0), None], 2), [[1, 2], [math.nan, math.nan]])
    assert replay_matrix([(), ()], 4).shape == (2, 0) and replay_matrix([], 4).shape == (0, 4)
