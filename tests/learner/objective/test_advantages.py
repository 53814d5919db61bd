import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from squelch.learner.config import OverlongConfig
from squelch.learner.objective.advantages import (
    group_advantages,
    group_advantages_with_costs,
    overlong_penalties,
    shaped_returns,
)

RETURNS = st.lists(st.floats(-100, 100), min_size=2, max_size=16)


def test_advantages_by_hand() -> None:
    centred = group_advantages(np.array([1.0, 0.0, 0.0, 3.0]), "grpo_no_std")
    assert np.allclose(centred, [0, -1, -1, 2])
    assert np.allclose(group_advantages(np.array([1.0, 0.0, 0.0, 3.0]), "grpo"), centred / np.sqrt(2.0))


@given(RETURNS)
def test_advantages_sum_to_zero_and_have_the_sample_std_of_one_or_none(returns: list[float]) -> None:
    advantages = group_advantages(np.array(returns), "grpo")
    assert abs(advantages.sum()) < 1e-6
    assert not advantages.any() or abs(advantages.std(ddof=1) - 1) < 1e-9


@given(st.floats(-1e6, 1e6), st.integers(2, 16), st.sampled_from(["grpo", "grpo_no_std"]))
def test_equal_returns_have_no_advantage(value: float, count: int, estimator: str) -> None:
    assert not group_advantages(np.full(count, value), estimator).any()


@given(st.lists(st.floats(0, 10), min_size=2, max_size=8), st.floats(1e-6, 1), st.sampled_from(["grpo", "grpo_no_std"]))
def test_the_cost_of_a_kl_term_alone_is_centred_and_keeps_its_coefficient(
    costs: list[float], coefficient: float, estimator: str
) -> None:
    """Found by a reviewer: divided by its own spread, the smallest KL term made a full step where all returns equal."""
    kl, equal = np.array(costs), np.full(len(costs), 0.3)
    found = group_advantages_with_costs(equal, coefficient * kl, estimator)
    assert np.allclose(found, coefficient * (kl.mean() - kl), atol=1e-12)
    differing = np.arange(len(costs), dtype=float)
    whole = group_advantages_with_costs(differing, 1e-3 * kl, estimator)
    assert np.array_equal(whole, group_advantages(differing - 1e-3 * kl, estimator))
    assert group_advantages_with_costs(equal[:1], kl[:1], estimator).tolist() == [0.0]


def test_rounding_is_no_signal() -> None:
    assert not group_advantages(np.array([0.1 + 0.2, 0.3, 0.3]), "grpo").any()


def test_a_single_survivor_has_no_advantage() -> None:
    assert group_advantages(np.array([5.0]), "grpo").tolist() == [0.0]


def test_format_penalty_enters_only_when_asked() -> None:
    returns, penalties = np.array([1.0, 0.0]), np.array([-0.2, 0.0])
    assert shaped_returns(returns, penalties, True).tolist() == [0.8, 0.0]
    assert shaped_returns(returns, penalties, False).tolist() == [1.0, 0.0]


def test_the_over_long_penalty_by_hand() -> None:
    config = OverlongConfig(penalty=0.5, max_tokens=10, cache_tokens=4)
    assert overlong_penalties(np.array([0, 6, 7, 8, 10, 25]), config).tolist() == [0, 0, -0.125, -0.25, -0.5, -0.5]
    hard = OverlongConfig(penalty=1.0, max_tokens=10, cache_tokens=0)
    assert overlong_penalties(np.array([10, 11]), hard).tolist() == [0, -1]
    assert not overlong_penalties(np.array([99]), OverlongConfig()).any()


@given(st.integers(1, 50), st.data())
def test_the_over_long_penalty_never_rewards_and_never_falls_with_length(longest: int, data: st.DataObject) -> None:
    config = OverlongConfig(penalty=1.0, max_tokens=longest, cache_tokens=data.draw(st.integers(0, longest)))
    found = overlong_penalties(np.arange(2 * longest + 1), config)
    assert found.max() <= 0 and found.min() == -1 and (np.diff(found) <= 0).all()
