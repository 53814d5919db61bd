"""TextArena's single-player games, played offline in a process of their own."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from squelch.envs.adapters.textarena import GAMES, MAX_MOVE, ONE_START, Game
from squelch.envs.registry import make
from squelch.kit.records.splits import split_of

textarena = pytest.importorskip("textarena", reason="textarena is not installed")
NOISE = {"noise_seed": 5}
GUESS = {"game": "GuessTheNumber-v0", "kwargs": {"max_number": 1000}}


def test_a_guess_is_answered_and_the_right_one_wins() -> None:
    env = Game("train", **GUESS)
    shown, _ = env.reset(seed=1, options=NOISE)
    assert "Guess The Number" in shown and "1000" in shown
    secret = env._game.state.game_state["game_number"]
    other = secret - 1 if secret > 1 else secret + 1
    shown, *rest = env.step(str(other))
    assert shown.startswith("The target number is") and rest == [0.0, False, False, {"success": False}]
    assert str(other) not in shown, "the player's own move is not shown again"
    assert env.step(f"I say [{secret}]")[1:] == (1.0, True, False, {"success": True})


def test_any_text_of_bounded_length_is_a_move() -> None:
    env = Game("train", **GUESS)
    assert env.read_action(" [4]\n") == "[4]" and env.read_action("x" * MAX_MOVE) == "x" * MAX_MOVE
    assert env.read_action(" \t") is None and env.read_action("x" * (MAX_MOVE + 1)) is None


def test_repeated_invalid_moves_end_the_game() -> None:
    env = Game("train", game="Mastermind-v0")
    env.reset(seed=1, options=NOISE)
    assert "invalid move" in env.step("what?")[0]
    assert env.step("what?")[1:] == (0.0, True, False, {"success": False})


@pytest.mark.parametrize("game", ["Slitherlink-v0", "ThreeCardMonte-v0", "Countdown-v0", "Cryptarithm-v0"])
def test_an_invalid_move_gets_its_reason_and_reward_where_the_game_swaps_the_two(game: str) -> None:
    env = Game("train", game=game, hold_out=game not in ONE_START)
    env.reset(seed=1, options=NOISE)
    assert re.search(r"Reason: (Bad|Invalid) action", env.step("[what?]")[0])
    _, reward, *ends = env.step("[what?]")
    assert 0 <= reward < 1 and ends == [True, False, {"success": False}]


def test_a_task_is_its_seed_in_every_process_and_belongs_to_its_split() -> None:
    isolated, here = make("TextArena", "train", {**GUESS, "timeout_s": 60}), Game("train", **GUESS)
    keys: dict[str, set[str]] = {}
    for split in ("train", "validation"):
        env = Game(split, **GUESS)
        for seed in range(40):
            shown, info = env.reset(seed=seed, options=NOISE)
            random.random()  # of somebody else
            assert env.reset(seed=seed, options={"noise_seed": 6}) == (shown, info)
            assert split_of(info["task_key"]) == split
            keys.setdefault(split, set()).add(info["task_key"])
    assert not keys["train"] & keys["validation"] and min(map(len, keys.values())) > 25
    assert isolated.reset(seed=3, options=NOISE) == here.reset(seed=3, options=NOISE)
    assert isolated.step("500") == here.step("500")


def test_chance_after_the_start_follows_the_noise_seed() -> None:
    env = Game("train", game="2048-v0")

    def boards(noise: int) -> list[str]:
        env.reset(seed=4, options={"noise_seed": noise})
        return [env.step(move)[0] for move in ("left", "up", "right", "down")]

    assert boards(1) == boards(1) and len({tuple(boards(noise)) for noise in range(8)}) > 3


@pytest.mark.parametrize("game", ["Sudoku-v0-easy", "LightsOut-v0", "Crosswords-v0", "ThreeCardMonte-v0", "Set-v0"])
def test_listed_games_start_differently_by_seed(game: str) -> None:
    env = Game("train", game=game)
    assert len({env.reset(seed=seed, options=NOISE)[1]["task_key"] for seed in range(6)}) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("game", [*GAMES, *ONE_START])
def test_every_listed_game_starts_offline_and_answers_a_move(game: str) -> None:
    env = Game("train", game=game, hold_out=game not in ONE_START)
    shown, info = env.reset(seed=2, options=NOISE)
    assert len(shown) > 50 and info["task_key"] == env.reset(seed=2, options=NOISE)[1]["task_key"]
    observation, reward, *_ = env.step("[1]")
    assert isinstance(observation, str) and abs(reward) <= 1
    assert env._game.state.max_turns == {**GAMES, **ONE_START}[game]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"game": "Mastermnd-v0"}, r"game: 'Mastermnd-v0' is none of .* played offline; did you mean 'Mastermind-v0'"),
        ({"game": "Chess-v0"}, r"game: 'Chess-v0' is none of the single-player games"),
        ({"game": "TwentyQuestions-v0"}, r"game: 'TwentyQuestions-v0' is none of the single-player games"),
        ({"game": "PegJump-v0"}, r"hold_out: PegJump-v0 always starts alike.* set it to false"),
        ({**GUESS, "kwargs": {"colour": 1}}, r"kwargs: GuessTheNumber-v0 refuses them: .*colour"),
    ],
)
def test_what_cannot_be_played_is_refused_with_the_option_to_change(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=rf"environment\.options\.{says}"):
        make("TextArena", options={**options, "timeout_s": 60})
