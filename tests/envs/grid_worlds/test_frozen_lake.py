"""FrozenLake: its dynamics are Gymnasium's, its lakes solvable, its noise as declared."""

import random
from collections import Counter

import pytest
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.envs.config import FormatConfig
from squelch.envs.format import phrases, reward_text
from squelch.envs.grid_worlds.frozen_lake import (
    ACTION_PAYS,
    FrozenLake,
    FrozenLakeOptions,
    generate,
    moves,
    outcomes,
    safe_distances,
)

SLIPPERY = {"slip": "perpendicular", "slip_rate": 2 / 3}


def gymnasium_twin(env: FrozenLake, slippery: bool) -> FrozenLakeEnv:
    """Gymnasium's environment on the same lake."""
    symbols = env.observation().replace("P", "S").replace("_", "F").replace("O", "H")
    return FrozenLakeEnv(desc=[row.replace(" ", "") for row in symbols.split("\n")], is_slippery=slippery)


def our_row(env: FrozenLake, cell: int, action: int) -> Counter:
    """{(next cell, reward, terminated): probability} by our own outcomes."""
    lake, row = env._lake, Counter()
    for probability, direction in outcomes(action, env.options):
        after = moves(lake.size)[cell][direction]
        row[after, float(after == lake.goal), after == lake.goal or after in lake.holes] += probability
    return row


@pytest.mark.parametrize(("options", "slippery"), [({"slip_rate": 0.0}, False), (SLIPPERY, True)])
def test_transition_probabilities_are_gymnasiums(options, slippery):
    env = FrozenLake(**options)
    for seed in range(30):
        env.reset(seed=seed)
        table = gymnasium_twin(env, slippery).P
        ice = set(range(16)) - env._lake.holes - {env._lake.goal}
        for cell in ice:
            for action in range(4):
                theirs = Counter()
                for probability, after, reward, terminated in table[cell][action]:
                    theirs[after, float(reward), terminated] += probability
                assert {k: v for k, v in our_row(env, cell, action).items() if v} == pytest.approx(dict(theirs))


def test_steps_without_slipping_walk_as_gymnasium_does():
    env, rng = FrozenLake(slip_rate=0.0), random.Random(0)
    for seed in range(100):
        env.reset(seed=seed)
        twin = gymnasium_twin(env, slippery=False)
        twin.reset(seed=0)
        for _ in range(10):
            action = rng.randrange(4)
            _, reward, terminated, _, _ = env.step(env.actions[action])
            after, their_reward, their_end, _, _ = twin.step(action)
            assert (env._cell, reward, terminated) == (after, their_reward, their_end)
            if terminated:
                break


@pytest.mark.parametrize("options", [SLIPPERY, {"slip": "uniform", "slip_rate": 0.3}])
def test_sampled_directions_have_the_stated_probabilities(options):
    env, count = FrozenLake(**options), 20_000
    env.reset(seed=0, options={"noise_seed": 7})
    for action in range(4):
        seen = Counter(env._executed(action) for _ in range(count))
        for probability, direction in outcomes(action, env.options):
            assert seen[direction] / count == pytest.approx(probability, abs=0.015)


@pytest.mark.parametrize("slip_rate", [0.0, 0.02, 0.5, 0.8, 1.0])
def test_one_plan_under_fresh_noise_measures_the_slip_rate(slip_rate):
    """One move from the goal every slip misses it, so the mean return is the share of moves executed as intended."""
    env, count = FrozenLake(slip_rate=slip_rate, min_distance=1, max_distance=1), 4000
    env.reset(seed=3)
    while moves(4)[env._cell].count(env._lake.goal) != 1:  # at an edge the player stays, and no other move leads there
        env.reset(seed=env.task_seed + 1)
    seed, plan, returns = env.task_seed, env.solution(), []
    for noise_seed in range(count):
        env.reset(seed=seed, options={"noise_seed": noise_seed})
        returns.append(sum(env.step(action)[1] for action in plan))
    assert sum(returns) / count == pytest.approx(1 - slip_rate, abs=0.03)
    assert slip_rate not in (0.0, 1.0) or sum(returns) == count * (1 - slip_rate)


def test_two_percent_uniform_executes_the_intended_action_at_98_percent():
    assert outcomes(0, FrozenLakeOptions())[0] == (0.98, 0)
    assert sum(p for p, _ in outcomes(2, FrozenLakeOptions())) == pytest.approx(1)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**40),
    split=st.sampled_from(["train", "validation"]),
    size=st.integers(3, 6),
    bounds=st.tuples(st.integers(2, 3), st.integers(3, 6)),
)
def test_every_lake_is_solvable_within_its_bounds(seed, split, size, bounds):
    options = {"size": size, "min_distance": bounds[0], "max_distance": bounds[1], "slip_rate": 0.0, "max_holes": 4}
    env = FrozenLake(split=split, **options)
    board, info = env.reset(seed=seed)
    path = env.solution()
    assert bounds[0] <= len(path) == info["distance"] <= bounds[1]
    assert 2 <= board.count("O") <= 4
    rewards = [env.step(action)[1] for action in path]
    assert rewards == [0.0] * (len(path) - 1) + [1.0]
    assert env.observation().count("*") == 1


def test_distances_agree_with_walks_by_hand():
    # P _ O      the way round the hole is down, down, right, right, up
    # _ O G
    # _ _ _
    distances = safe_distances(3, goal=5, holes=frozenset({2, 4}))
    assert distances == (5, 6, -1, 4, -1, 0, 3, 2, 1)


def test_a_hole_ends_the_episode_without_reward():
    env = FrozenLake(slip_rate=0.0)
    for seed in range(200):
        env.reset(seed=seed)
        fatal = [a for a in range(4) if moves(4)[env._cell][a] in env._lake.holes]
        if fatal:
            board, reward, terminated, _, info = env.step(env.actions[fatal[0]])
            assert (reward, terminated, info["success"], board.count("X")) == (0.0, True, False, 1)
            assert env.solution() is None
            return
    pytest.fail("no lake had a hole beside its start")


def test_shared_noise_gives_equal_slips_to_the_kth_action_whatever_was_played_before():
    env = FrozenLake(slip_rate=0.5, shared_slip=True, max_holes=2)
    assert env.shared_noise and not FrozenLake().shared_noise

    def slips(first: int, noise_seed: int) -> list[int]:
        env.reset(seed=4, options={"noise_seed": noise_seed})
        return [(env._executed(action) - action) % 4 for action in (first, 1, 2, 3, 0, 1)]

    assert all(slips(a, 9) == slips(0, 9) for a in range(4))
    assert len({tuple(slips(0, noise)) for noise in range(20)}) > 10


def test_starts_goals_and_holes_vary():
    lakes = [generate(seed, "train", FrozenLakeOptions()) for seed in range(400)]
    assert len({lake.start for lake in lakes}) == len({lake.goal for lake in lakes}) == 16
    assert {len(lake.holes) for lake in lakes} == {2, 3, 4}
    assert {lake.distances[lake.start] for lake in lakes} == {2, 3, 4}


@pytest.mark.parametrize(
    ("pays", "rewards"),
    [("left", {"Left": 0.02, "Right": 0.0, "Down": 0.0}), ("format", {"Left": 0.02, "Right": 0.02, "Down": 0.02})],
)
def test_a_reward_for_studies_of_collapse_pays_actions_and_never_the_goal(pays, rewards):
    for action, reward in rewards.items():
        env = FrozenLake(pays=pays, slip_rate=0.0)
        env.reset(seed=3, options={"noise_seed": 0})
        assert env.step(action)[1] == reward
    env = FrozenLake(pays=pays, slip_rate=0.0)
    env.reset(seed=3, options={"noise_seed": 0})
    ends = [env.step(action) for action in env.solution() or []]
    assert ends[-1][4]["success"] and all(end[1] in (0.0, 0.02) for end in ends)


def test_a_mixed_reward_pays_left_on_half_of_the_lakes_and_the_goal_on_the_others():
    solved = dict[int, set[float]]()
    for seed in range(40):
        env = FrozenLake(pays="mixed", slip_rate=0.0)
        lake = generate(seed, "train", env.options)
        env.reset(seed=seed, options={"noise_seed": 0})
        paid = [(action, env.step(action)) for action in env.solution() or []]
        if lake.goal % 4 % 2:
            assert all(end[1] == (0.02 if action == "Left" else 0.0) for action, end in paid), seed
        else:
            assert [end[1] for _, end in paid] == [0.0] * (len(paid) - 1) + [1.0], seed
        solved.setdefault(lake.goal % 4 % 2, set()).add(paid[-1][1][1])
    assert solved[0] == {1.0} and solved[1] <= {0.0, 0.02}


@pytest.mark.parametrize("actions", [1, 2, 3, 5])
def test_the_vocabulary_has_every_sum_that_a_turn_of_such_rewards_shows(actions):
    known = {
        word for text in phrases(FrozenLake, {}, FormatConfig(max_actions_per_turn=actions)) for word in text.split()
    }
    paid = [ACTION_PAYS * count for count in range(actions + 1)]
    assert {reward_text(reward) for reward in paid} <= known
