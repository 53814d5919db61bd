"""Replays play the actions of an episode again, under other noise and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.envs.config import FormatConfig
from squelch.envs.contract import Environment
from squelch.envs.episode import Episode
from squelch.envs.format import well_formed
from squelch.envs.grid_worlds.frozen_lake import FrozenLake
from squelch.envs.noise.replay import MAX_SLICE_S, Replay
from squelch.envs.noise.reward_noise import NO_NOISE, RewardNoise

MOVES = ("Left", "Down", "Right", "Up")
PLANS = st.lists(st.lists(st.sampled_from(MOVES), max_size=2), min_size=1, max_size=5)
CONFIG = FormatConfig(max_turns=5, max_actions_per_turn=2)


class Counting(Environment):
    """Pays the number of its steps so far; ends after `length` steps. Every step takes a second of the given clock."""

    max_turns = 9
    max_actions_per_turn = 9

    def __init__(self, length: int, rewards: Any = None) -> None:
        super().__init__()
        self.length, self.rewards, self.played, self.seconds, self.resets = length, rewards, 0, 0.0, 0

    def rules(self) -> str:
        return "Count ."

    def read_action(self, text: str) -> str | None:
        return text.strip() or None

    def reset(self, *, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self.played, self.resets = 0, self.resets + 1
        return "0", {"task_key": f"{seed}"}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.played, self.seconds = self.played + 1, self.seconds + 1
        reward = self.played if self.rewards is None else self.rewards
        return "n", reward, self.played >= self.length, False, {"success": False}


def whole(replay: Replay) -> float:
    while (earned := replay.advance()) is None:
        pass
    return earned


def played(env: Environment, noise_seed: int, turns: list[list[str]], noise: RewardNoise = NO_NOISE) -> Any:
    """(episode, its return), of an open-loop policy."""
    episode = Episode(env, 4, noise_seed, CONFIG, noise)
    episode.start()
    earned = 0.0
    for actions in turns:
        outcome = episode.act(well_formed("so", actions))
        earned += outcome.reward
        if outcome.done:
            break
    return episode, earned


@given(PLANS, st.integers(0, 50), st.sampled_from([0.0, 0.4, 1.0]), st.sampled_from([0.0, 2.0]))
@settings(max_examples=30, deadline=None)
def test_a_replay_under_the_noise_of_the_episode_earns_its_return(turns, noise_seed, slip_rate, std) -> None:
    full = [*turns, *[["Up"]] * (5 - len(turns))]
    episode, earned = played(FrozenLake(slip_rate=slip_rate), noise_seed, full, RewardNoise(std=std))
    assert whole(episode.replay(noise_seed)) == pytest.approx(earned, abs=1e-12)


def test_fresh_noise_spreads_the_returns_of_one_plan_and_one_seed_does_not() -> None:
    env = FrozenLake(slip_rate=0.5)
    env.reset(seed=4)
    episode, _ = played(env, 1, [env.solution()[:2], env.solution()[2:4] or ["Up"]])
    assert len({whole(episode.replay(7)) for _ in range(20)}) == 1
    assert {whole(episode.replay(seed)) for seed in range(100)} == {0.0, 1.0}


def test_actions_that_an_answer_names_after_the_end_belong_to_the_plan() -> None:
    env = Counting(length=1)
    episode, earned = played(env, 0, [["go", "go"]])
    assert earned == 1
    env.length = 9
    assert whole(episode.replay(0)) == 3, "the second action is played where the environment has not ended"


def test_a_replay_that_ends_first_drops_the_rest_and_a_plan_that_ends_first_is_not_continued() -> None:
    env = Counting(length=4)
    episode, _ = played(env, 0, [["go", "go"], ["go"]])
    assert whole(episode.replay(0)) == 6 and env.played == 3
    env.length = 2
    assert whole(episode.replay(0)) == 3 and env.played == 2


def test_badly_formatted_turns_play_what_they_played() -> None:
    env = Counting(length=9)
    episode = Episode(env, 4, 0, CONFIG)
    episode.start()
    for text in ("no answer", " so</think> <answer> go || </answer>"):
        episode.act(text)
    assert whole(episode.replay(0)) == 1 and env.resets == 2


def test_a_long_replay_returns_between_steps_so_that_no_call_is_long() -> None:
    env = Counting(length=99)
    replay = Replay(env, 4, "4", ["go"] * 5, 0, 0.5)
    found = [replay.advance(lambda: env.seconds) for _ in range(5)]
    assert MAX_SLICE_S < 1 and found == [None] * 4 + [15.5], "one step a call, since each takes a second"


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), "much"])
def test_a_reward_that_is_no_number_fails_the_replay(reward: Any) -> None:
    with pytest.raises(ValueError, match="a finite number is needed"):
        Replay(Counting(2, reward), 4, "4", ["go"], 0, 0.0).advance()


def test_an_environment_that_starts_another_task_is_not_taken_for_a_replay() -> None:
    with pytest.raises(RuntimeError, match="started another task for the same seed"):
        Replay(Counting(2), 4, "5", ["go"], 0, 0.0).advance()


# --- reward noise ---


def test_reward_noise_is_added_once_at_the_end_and_the_policy_does_not_read_it() -> None:
    plain, noisy = (Episode(Counting(3), 4, 8, CONFIG, RewardNoise(std=std)) for std in (0.0, 5.0))
    assert plain.start() == noisy.start() and (plain.noisy, noisy.noisy) == (False, True)
    for last in (False, False, True):
        quiet, loud = (episode.act(well_formed("so", ["go"])) for episode in (plain, noisy))
        assert quiet.next_message == loud.next_message and quiet.done is loud.done is last
        assert (loud.reward - quiet.reward) == pytest.approx(RewardNoise(std=5.0).draw(8) if last else 0.0)


def test_reward_noise_has_mean_0_and_its_standard_deviation_and_follows_the_noise_seed() -> None:
    draws = [RewardNoise(std=2.0).draw(seed) for seed in range(4000)]
    assert sum(draws) / 4000 == pytest.approx(0, abs=0.1)
    assert sum(draw * draw for draw in draws) / 4000 == pytest.approx(4, rel=0.1)
    assert draws == [RewardNoise(std=2.0).draw(seed) for seed in range(4000)]
    assert RewardNoise().draw(3) == 0.0


def test_a_replay_of_an_episode_without_room_in_its_context_gets_no_reward_noise_either() -> None:
    """Found by a reviewer: noise was taken off the variance of returns that had none."""
    episode = Episode(Counting(3), 4, 8, CONFIG, RewardNoise(std=5.0))
    episode.start()
    earned = episode.act(well_formed("so", ["go"])).reward
    assert [whole(episode.replay(seed)) for seed in range(3)] == [earned] * 3


def test_an_episode_at_its_turn_limit_gets_reward_noise_too() -> None:
    _, earned = played(FrozenLake(slip_rate=0.0), 3, [[]] * 5, RewardNoise(std=1.0))
    assert earned == RewardNoise(std=1.0).draw(3) != 0
