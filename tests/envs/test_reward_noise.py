"""Reward noise is paid once, at an episode's end, and nobody reads it."""

from __future__ import annotations

from typing import Any

import pytest

from squelch.envs.config import FormatConfig
from squelch.envs.contract import Environment
from squelch.envs.episode import Episode
from squelch.envs.format import well_formed
from squelch.envs.reward_noise import RewardNoise

CONFIG = FormatConfig(max_turns=5, max_actions_per_turn=2)


class Counting(Environment):
    """Pays the number of its steps so far; ends after `length` steps."""

    max_turns = 9

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length, self.played = length, 0

    def rules(self) -> str:
        return "Count ."

    def read_action(self, text: str) -> str | None:
        return text.strip() or None

    def reset(self, *, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self.played = 0
        return "0", {"task_key": f"{seed}"}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.played += 1
        return "n", self.played, self.played >= self.length, False, {"success": False}


def test_reward_noise_is_added_once_at_the_end_and_the_policy_does_not_read_it() -> None:
    plain, noisy = (Episode(Counting(3), 4, 8, CONFIG, RewardNoise(std=std)) for std in (0.0, 5.0))
    assert plain.start() == noisy.start()
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


def test_an_episode_at_its_turn_limit_gets_reward_noise_too() -> None:
    episode = Episode(Counting(99), 4, 3, CONFIG, RewardNoise(std=1.0))
    episode.start()
    outcomes = [episode.act("no action") for _ in range(5)]
    assert [outcome.reward for outcome in outcomes] == [0, 0, 0, 0, RewardNoise(std=1.0).draw(3)]
    assert outcomes[-1].done and outcomes[-1].truncated
