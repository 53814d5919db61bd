import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.kit.api.filtering import filter
from squelch.kit.records.equal_rewards import are_equal
from squelch.learner.objective.advantages import group_advantages


def test_a_group_of_equal_rewards_is_dropped_whatever_their_size_and_the_statistic() -> None:
    for scale in 10.0 ** np.arange(-3, 16):
        rewards = np.repeat(np.random.default_rng(0).random((50, 1)) * scale, 7, axis=1)
        for statistic in ("reward_variance", "reward_std"):
            assert not filter(rewards, statistic=statistic).kept.any()


@settings(max_examples=40)
@given(st.integers(-3, 12), st.integers(-14, 0), st.lists(st.floats(-1, 1), min_size=2, max_size=8), st.booleans())
def test_a_group_that_the_filter_keeps_has_advantages(scale: int, spread: int, parts: list[float], std: bool) -> None:
    rewards = 10.0**scale * (1 + 10.0**spread * np.array(parts))
    kept = filter(rewards[None], statistic="reward_std" if std else "reward_variance").kept[0]
    assert not kept or group_advantages(rewards, "grpo").any()


@pytest.mark.parametrize(
    ("rewards", "equal"),
    [([0.1 + 0.2, 0.3], True), ([1e6, 1e6 + 1e-3], False), ([1e9, 1e9 + 1e-3], True), ([0, 1e-9], False), ([5], True)],
)
def test_rewards_are_equal_but_for_rounding_of_the_largest(rewards: list[float], equal: bool) -> None:
    assert are_equal(np.array([rewards, rewards])).tolist() == [equal, equal]


def test_rewards_that_are_not_finite_are_not_equal() -> None:
    infinite = np.full((1, 3), np.inf)
    assert not are_equal(np.concatenate([infinite, -infinite, np.nan * infinite])).any()
    assert are_equal(np.full((1, 3), 1e300)).all() and not are_equal(np.array([1e308, -1e308])).any()
