"""Sokoban: rules, rewards of appendix B.1, solver and generator."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.envs.config import FormatConfig
from squelch.envs.format import phrases
from squelch.envs.grid_worlds.sokoban import (
    Level,
    Room,
    Sokoban,
    advance,
    dead_cells,
    grid,
    make_moves,
    members,
    retreat,
    solvable_states,
    solve,
)
from squelch.envs.registry import make


def board(text: str) -> Sokoban:
    """An environment that stands at a board drawn by hand."""
    rows = [row.split() for row in text.strip().splitlines()]
    cells, side = [cell for row in rows for cell in row], len(rows)

    def mask(symbols: str) -> int:
        return sum(1 << i for i, cell in enumerate(cells) if cell in symbols)

    moves = make_moves(side, mask("#"))
    room = Room(side, moves, mask("O*S"), dead_cells(moves, mask("O*S")))
    env = Sokoban(size=side + 2)
    env.reset(seed=0)
    env._player, env._boxes = members(mask("PS"))[0], mask("X*")
    env._level = Level(room, env._player, env._boxes, -1, "")
    assert env.observation().split() == cells
    return env


def test_an_action_costs_what_the_option_says_and_the_vocabulary_has_the_sums_that_turns_show():
    options = {"action_reward": 0.0, "boxes": 2}
    env = make("Sokoban", options=options)
    env.reset(seed=0)
    path, rewards = env.solution(), []
    for action in path:
        rewards.append(env.step(action)[1])
    assert rewards[-1] == 11.0 and set(rewards[:-1]) == {0.0}
    known = {word for text in phrases(Sokoban, options, FormatConfig()) for word in text.split()}
    assert {"0.0", "1.0", "-1.0", "2.0", "-2.0"} <= known and not {"-0.1", "0.9"} & known
    with pytest.raises(ValueError, match=r"action_reward: .*less than or equal to 0"):
        make("Sokoban", options={"action_reward": 0.1})


def test_rewards_of_appendix_b1():
    env = board("""
        _ _ _ _
        P X O _
        _ _ X O
        _ _ _ _
    """)
    rewards = [env.step(action)[1] for action in ("Left", "Right", "Right", "Down", "Left")]
    # bump, box onto target, off it, walk, walk
    assert rewards == pytest.approx([-0.1, 0.9, -1.1, -0.1, -0.1])
    assert not env._terminated()


def test_the_last_box_pays_ten_more_and_ends_the_episode():
    env = board("""
        _ _ _ _
        P X O _
        _ _ * _
        _ _ _ _
    """)
    observation, reward, terminated, truncated, info = env.step("Right")
    assert reward == pytest.approx(10.9)
    assert (terminated, truncated, info["success"]) == (True, False, True)
    assert observation.split()[4:7] == ["_", "P", "*"]


def test_from_target_to_target_pays_the_step_alone():
    env = board("""
        P * O _
        _ _ X O
        _ _ _ _
        _ _ _ _
    """)
    assert env.step("Right")[1] == pytest.approx(-0.1)
    assert env.observation().split()[:4] == ["_", "S", "*", "_"]


def test_a_box_against_a_wall_or_a_box_does_not_move():
    env = board("""
        P X X _
        X _ O O
        # _ _ _
        _ _ _ O
    """)
    before = env.observation()
    assert [env.step(action)[1] for action in ("Right", "Down")] == [-0.1, -0.1]
    assert env.observation() == before


def test_a_deadlock_is_reported_and_does_not_end_the_episode():
    env = board("""
        _ X P _
        _ _ _ _
        _ O _ _
        _ _ _ _
    """)
    _, reward, terminated, _, info = env.step("Left")
    assert (reward, terminated, info["deadlock"]) == (-0.1, False, True)
    assert env.solution() is None
    assert not board("P _ _ _\n_ X O _\n_ _ _ _\n_ _ _ _").step("Down")[4]["deadlock"]


def test_dead_cells_are_the_corners_and_edges_without_target():
    moves = make_moves(4, 0)
    edge = {c for c in range(16) if c // 4 in (0, 3) or c % 4 in (0, 3)}
    assert set(members(dead_cells(moves, 1 << 5))) == edge
    assert set(members(dead_cells(moves, 1 << 1))) == edge - {1, 2}


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**40), split=st.sampled_from(["train", "validation"]), boxes=st.integers(1, 2))
def test_every_task_is_solved_in_exactly_its_stated_length(seed, split, boxes):
    env = Sokoban(split=split, boxes=boxes)
    _, info = env.reset(seed=seed)
    path = env.solution()
    assert 2 <= len(path) == info["solution_length"] <= 8
    outcomes = [env.step(action) for action in path]
    assert [outcome[4]["success"] for outcome in outcomes] == [False] * (len(path) - 1) + [True]
    assert sum(outcome[1] for outcome in outcomes) == pytest.approx(10 - 0.1 * len(path) + placed_at_start(env, boxes))


def placed_at_start(env: Sokoban, boxes: int) -> int:
    """Net number of boxes that the episode brought onto targets."""
    return boxes - (env._level.boxes & env._level.room.targets).bit_count()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**40))
def test_playing_backwards_undoes_playing_forwards(seed):
    env, rng = Sokoban(boxes=2), random.Random(seed)
    env.reset(seed=seed)
    moves, state = env._level.room.moves, (env._player, env._boxes)
    for _ in range(20):
        after = advance(moves, *state, rng.randrange(4))
        if after is not None:
            assert state in retreat(moves, *after)
            assert all(after in [advance(moves, *before, a) for a in range(4)] for before in retreat(moves, *after))
            state = after


def test_the_solver_finds_a_solution_iff_reverse_play_reaches_the_state():
    for seed in range(10):
        env = Sokoban()
        env.reset(seed=seed)
        room = env._level.room
        depth = {state: d for d, layer in enumerate(solvable_states(room, 200)) for state in layer}
        floor = [c for c in range(16) if max(room.moves[c]) >= 0]
        for player in floor:
            for box in floor:
                if box != player:
                    path = solve(room, player, 1 << box)
                    assert (None if path is None else len(path)) == depth.get((player, 1 << box))


def test_rooms_are_connected_and_at_least_half_floor():
    env = Sokoban()
    for seed in range(200):
        observation, _ = env.reset(seed=seed)
        moves, reached = env._level.room.moves, [env._player]
        for cell in reached:
            reached.extend(n for n in set(moves[cell]) if n >= 0 and n not in reached)
        assert len(reached) == 16 - observation.count("#") >= 8
        assert observation == grid(env._level.room, env._player, env._boxes)


def test_solution_lengths_spread_over_the_bounds():
    env = Sokoban(min_solution=3, max_solution=6)
    assert {env.reset(seed=seed)[1]["solution_length"] for seed in range(200)} == {3, 4, 5, 6}


def test_larger_rooms_with_more_boxes_are_made_too():
    env = Sokoban(size=8, boxes=3, max_walls=8, max_solution=10)
    observation, info = env.reset(seed=1)
    assert observation.count("O") + observation.count("*") + observation.count("S") == 3
    assert len(env.solution()) == info["solution_length"] <= 10
