"""The exact policy variance of tabular policies agrees with enumeration and with the real environment."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from research.policy_variance.__main__ import study
from research.policy_variance.lake import HORIZON, Tabular, draw_plans, exact, plan_returns, transitions
from research.policy_variance.policies import POLICIES, lakes, options_at
from squelch.envs.grid_worlds.frozen_lake import FrozenLake
from squelch.envs.noise.replay import Replay

LAKE = lakes(1)[0]
OPTIONS = options_at(0.5)


def near_goal() -> int:
    """A cell beside the goal that ends no episode, so that two actions may succeed."""
    return next(cell for cell in range(16) if LAKE.distances[cell] == 1)


def random_policy(reacts: bool, seed: int = 0) -> Tabular:
    shape = (2, 16 if reacts else 1, 4)
    drawn = np.random.default_rng(seed).dirichlet(np.ones(4), size=shape[:2])
    return Tabular(np.broadcast_to(drawn, (2, 16, 4)), reacts)


def starting_at(cell: int):
    return type(LAKE)(LAKE.size, cell, LAKE.goal, LAKE.holes, LAKE.distances, LAKE.key)


def test_the_variance_of_plans_is_that_of_all_plans_enumerated() -> None:
    here, policy = starting_at(near_goal()), random_policy(reacts=False)
    plans = np.array(list(itertools.product(range(4), repeat=2)))
    weights = policy.probabilities[0, 0, plans[:, 0]] * policy.probabilities[1, 0, plans[:, 1]]
    values = plan_returns(here, OPTIONS, plans)
    mean = float(weights @ values)
    assert exact(here, OPTIONS, policy) == pytest.approx((mean, float(weights @ (values - mean) ** 2)))
    assert 0 < mean < 1


def test_the_variance_of_a_policy_that_reacts_is_that_of_all_its_deterministic_policies() -> None:
    here, policy, step = starting_at(near_goal()), random_policy(reacts=True), transitions(LAKE, OPTIONS)
    reached = np.flatnonzero(step[:, here.start].sum(axis=0))
    total = squares = weight = 0.0
    for first in range(4):
        for later in itertools.product(range(4), repeat=len(reached)):
            chance = policy.probabilities[0, here.start, first]
            chance *= np.prod([policy.probabilities[1, cell, a] for cell, a in zip(reached, later, strict=True)])
            value = sum(
                step[first, here.start, cell] * step[a, cell, here.goal] for cell, a in zip(reached, later, strict=True)
            )
            total, squares, weight = total + chance * value, squares + chance * value**2, weight + chance
    assert weight == pytest.approx(1)
    assert exact(here, OPTIONS, policy) == pytest.approx((total, squares - total**2))


def test_the_expected_return_of_a_plan_is_that_of_replays_in_the_environment() -> None:
    policy = POLICIES["plan, strays 40%"](LAKE)
    (plan,) = draw_plans(LAKE, OPTIONS, policy, 1, np.random.default_rng(1)).plans
    env = FrozenLake(slip_rate=OPTIONS.slip_rate)
    seed = next(seed for seed in range(200) if env.reset(seed=seed)[1]["task_key"] == LAKE.key)
    names = [env.actions[action] for action in plan]
    returns = [Replay(env, seed, LAKE.key, names, noise, 0.0).advance(lambda: 0.0) for noise in range(3000)]
    (expected,) = plan_returns(LAKE, OPTIONS, plan[None])
    assert np.mean(returns) == pytest.approx(expected, abs=0.03) and len(plan) == HORIZON


@pytest.mark.parametrize("name", list(POLICIES))
def test_drawn_episodes_have_the_exact_expected_return(name: str) -> None:
    policy = POLICIES[name](LAKE)
    drawn = draw_plans(LAKE, OPTIONS, policy, 20_000, np.random.default_rng(2))
    assert drawn.returns.mean() == pytest.approx(exact(LAKE, OPTIONS, policy)[0], abs=0.015)
    assert policy.reacts == bool((drawn.plans < 0).any()), "only a policy that reacts has a plan that ends early"


def test_where_actions_decide_nothing_no_policy_has_variance() -> None:
    for name, make in POLICIES.items():
        mean, variance = exact(LAKE, options_at(1.0), make(LAKE))
        assert variance == pytest.approx(0, abs=1e-12) and mean > 0, name


def test_plans_have_no_bias_and_policies_that_react_have_one_of_either_sign() -> None:
    plans = study("plan, strays 40%", 0.5, 4, 300, 1)
    assert abs(plans["bias"]) < 4 * plans["bias_error"] and plans["plain"] > 2 * plans["truth"]
    above, below = (study(name, 0.5, 2, 100, 1) for name in ("reacts, never strays", "reacts or gives up"))
    assert above["truth"] == pytest.approx(0) and above["bias"] > 6 * above["bias_error"]
    assert below["bias"] < -6 * below["bias_error"] and below["gap"] < -0.05
