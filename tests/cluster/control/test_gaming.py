"""What must hold of the warning for a gamed criterion; a policy that acts at random on purpose raises it."""

import json
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.cluster.control.gaming import FEWEST, Gaming, is_flat, kept_variance, prefers_variance, trend_of
from squelch.envs.grid_worlds.frozen_lake import FrozenLake
from squelch.kit.filter.measure import GroupStatistics
from squelch.kit.filter.settings import FilterConfig
from squelch.kit.filter.windows import make_window

EVERY, STEPS, GROUPS, SIZE, TASKS = 10, 20, 6, 8, 60


def plays(seed: int, noise_seed: int, randomness: float, able: float) -> bool:
    """One episode of a policy that knows the way on a share `able` of the lakes, and never reaches the goal on the
    others; each move is random with probability `randomness`."""
    env, rng = FrozenLake(slip_rate=0.0), random.Random(f"{seed} {noise_seed}")
    env.reset(seed=seed, options={"noise_seed": noise_seed})
    if random.Random(f"able {seed}").random() >= able:
        return False
    success = False
    for _ in range(5):
        way = env.solution()
        if way is None:  # the goal, or a hole
            break
        success = env.step(rng.choice(env.actions) if rng.random() < randomness else way[0])[-1]["success"]
    return success


def course(randomness, able) -> tuple[Gaming, list[int]]:
    """The warning beside a run of STEPS steps. `randomness`, `able`: of the policy, by step; a lower temperature makes
    its random moves rare. Returns the steps whose validation raised the warning, too."""
    gaming, raised = Gaming(), []
    for step in range(STEPS + 1):
        if step:
            window = make_window(FilterConfig(no_signal_limit=99))
            for number in range(GROUPS):
                seed = 1000 * step + number
                returns = [float(plays(seed, i, randomness(step), able(step))) for i in range(SIZE)]
                window.admit(GroupStatistics.from_row(f"{step:06d}-{number:03d}", step, np.array(returns)))
            decided = window.close(step)
            gaming.step(step, kept_variance(decided.metrics), decided.filter)
        if step % EVERY == 0:
            sharpened = randomness(step) ** 2
            solved = [plays(10**6 + task, 0, sharpened, able(step)) for task in range(TASKS)]
            raised += [step] * gaming.validation(step, solved)
    return gaming, raised


def test_a_policy_that_acts_at_random_on_purpose_is_reported() -> None:
    gaming, raised = course(lambda step: 0.02 * step, lambda step: 0.5)
    assert raised == [STEPS] and gaming.trend.rise > 1
    assert gaming.metrics()["gaming/raised"] == 1


def test_a_policy_that_learns_is_not_reported_though_its_variance_rises() -> None:
    gaming, raised = course(lambda step: 0.3, lambda step: 0.1 + 0.04 * step)
    assert not raised and gaming.trend.rise > 0.25 and gaming.gain[1] > 0


def rising(gaming: Gaming, first: int, last: int) -> None:
    for step in range(first, last + 1):
        gaming.step(step, 0.05 + 0.005 * step + 0.001 * (step % 3), "top_p")


def test_the_warning_needs_three_validations_and_clears_when_success_rises_or_variance_stops() -> None:
    flat, better = [True] * 30 + [False] * 30, [True] * 45 + [False] * 15
    gaming = Gaming()
    assert not gaming.validation(0, flat)
    rising(gaming, 1, 10)
    assert not gaming.validation(10, flat) and math.isnan(gaming.metrics()["gaming/variance_rise"])
    rising(gaming, 11, 20)
    assert gaming.validation(20, flat) and gaming.raised
    rising(gaming, 21, 30)
    assert not gaming.validation(30, flat) and gaming.raised, "it stays raised and is reported once"
    rising(gaming, 31, 40)
    assert not gaming.validation(40, better) and not gaming.raised
    for step in range(41, 80):
        gaming.step(step, 0.2 + 0.01 * (step % 2), "top_p")
        if step % 10 == 0:
            gaming.validation(step, better)
    assert not gaming.raised


@pytest.mark.parametrize("resumed", [False, True])
def test_variance_that_rises_because_the_filters_own_setting_moved_is_not_reported(resumed: bool) -> None:
    """Found by a reviewer: kept variance is proportional to the kept mass, so it rises with rho."""
    gaming, flat = Gaming(), [True] * 30 + [False] * 30
    assert not gaming.validation(0, flat)
    for step in range(1, 41):
        rho = 0.5 + 0.1 * (step // 14)
        gaming.step(step, rho * (0.2 + 0.001 * (step % 3)), f"top_p rho={rho:g}")
        if step % 20 == 0:
            assert not gaming.validation(step, flat)
        if resumed:
            state, gaming = json.loads(json.dumps(gaming.state())), Gaming()
            gaming.restore(state)
    assert abs(gaming.trend.rise) < 0.05


@given(st.lists(st.floats(0, 1), min_size=FEWEST, max_size=40), st.floats(0.1, 10))
@settings(max_examples=50, deadline=None)
def test_the_trend_does_not_depend_on_the_scale_of_the_rewards(values: list[float], scale: float) -> None:
    steps = list(range(len(values)))
    one, other = trend_of(steps, values), trend_of(steps, [scale * v for v in values])
    if np.ptp(values) > 1e-3 and one.rise < 1e3:
        assert other.rise == pytest.approx(one.rise, rel=1e-6, abs=1e-6)
        assert other.sureness == pytest.approx(one.sureness, rel=1e-6, abs=1e-6)


def test_few_or_unknown_variances_show_no_trend() -> None:
    assert math.isnan(trend_of(range(FEWEST), [math.nan, *range(FEWEST - 1)]).rise)
    assert trend_of(range(8), [0.0] * 8).rise == 0 == trend_of(range(8), [0.3] * 8).rise


def test_success_that_rises_by_more_than_noise_or_by_much_is_not_flat() -> None:
    assert is_flat(0.0, [-0.1, -0.1, -0.1])
    assert not is_flat(0.02, [-0.1, 0.001, -0.1]) and not is_flat(0.06, [-0.1, -0.1, -0.1])


@given(st.lists(st.booleans(), min_size=60, max_size=60), st.integers(0, 45))
@settings(max_examples=30, deadline=None)
def test_a_restored_warning_is_the_uninterrupted_one(solved: list[bool], cut: int) -> None:
    whole, part = Gaming(), Gaming()
    for step in range(46):
        if step == cut:
            state, part = json.loads(json.dumps(part.state())), Gaming()
            part.restore(state)
        for one in (whole, part):
            one.step(step, math.nan if step == 7 else 0.1 + 0.004 * step + 0.01 * (step % 4), f"rho {step // 20}")
            if step % 10 == 0:
                one.validation(step, solved)
        assert json.dumps(whole.metrics()) == json.dumps(part.metrics())


def test_a_raised_warning_survives_a_resume_after_the_filters_setting_changed() -> None:
    """Found by a reviewer: the steps of the old setting are gone, and the verdict was computed again without them."""
    gaming, _ = course(lambda step: 0.02 * step, lambda step: 0.5)
    gaming.step(STEPS + 1, 0.1, "another rho")
    assert gaming.raised
    restored = Gaming()
    restored.restore(json.loads(json.dumps(gaming.state())))
    assert restored.metrics() == gaming.metrics()


@pytest.mark.parametrize(
    ("settings", "prefers"),
    [
        ({}, True),
        ({"statistic": "reward_std"}, True),
        ({"rule": "none"}, False),
        ({"rule": "top_k", "keep": "smallest"}, False),
        ({"statistic": "length"}, False),
        ({"statistic": "entropy_variance"}, False),
        ({"statistic": "reward_mean", "rule": "top_k"}, False),
    ],
)
def test_only_a_filter_that_prefers_reward_variance_can_be_gamed(settings: dict[str, str], prefers: bool) -> None:
    assert prefers_variance(FilterConfig.model_validate(settings)) == prefers


def test_the_kept_variance_counts_every_group_of_the_step() -> None:
    window = make_window(FilterConfig(rule="top_k", rho=0.5, no_signal_limit=99))
    for number, returns in enumerate([[0.0, 1.0], [0.0, 2.0], [0.0, 0.0], [0.0, math.nan]]):
        window.admit(GroupStatistics.from_row(f"1-{number}", 1, np.array(returns)))
    decision = window.close(1)
    assert kept_variance(decision.metrics) == pytest.approx((0.5 + 2.0) / 4)
    empty = make_window(FilterConfig(no_signal_limit=99))
    empty.admit(GroupStatistics.from_row("1-0", 1, np.array([1.0, 1.0])))
    assert kept_variance(empty.close(1).metrics) == 0
