"""Replays that follow a trajectory: the same for the same ticket, independent, and no danger to the trajectory."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from squelch.actors.play import replaying, step_pool
from squelch.actors.play.replaying import Replayed, notes_on_replays, replay
from squelch.actors.play.seeds import noise_seed, replay_seed
from squelch.actors.play.step_pool import StepPool
from squelch.envs.config import EnvironmentConfig
from squelch.envs.grid_worlds.frozen_lake import FrozenLake
from squelch.envs.mixture import Mixture
from squelch.envs.noise.replay import Replay
from squelch.envs.noise.reward_noise import RewardNoise
from squelch.envs.registry import make
from squelch.kit.archive.rows import from_table, to_table
from squelch.kit.filter.settings import FilterConfig
from squelch.kit.records.records import Task, Trajectory, summarise
from tests.actors.play.test_player import Answers, Policy, play, player, ticket
from tests.moved_clock import BOUND_S, PAST_IT_S, MovedClock

ASKED = replace(ticket(size=6), replays=3)


def slippery(task: Task) -> FrozenLake:
    return FrozenLake(slip_rate=0.6, min_distance=1, max_distance=1)


def returns(trajectories: list[Trajectory]) -> list[tuple[float, ...] | None]:
    return [trajectory.replay_returns for trajectory in trajectories]


def test_a_ticket_played_again_has_the_same_replays_and_they_change_nothing_else(codec) -> None:
    noisy = [
        replace(ASKED, ticket_id="000001-001"),
        replace(ASKED, ticket_id="000001-002", group_size=12),
    ]
    first, again, without = (
        play(player(codec, Policy(codec), make_env=slippery), *tickets)
        for tickets in (noisy, noisy[::-1], [replace(one, replays=0) for one in noisy])
    )
    for one, two, bare in zip(first, again[::-1], without, strict=True):
        assert returns(one.trajectories) == returns(two.trajectories)
        assert all(len(found) == 3 for found in returns(one.trajectories))
        assert returns(bare.trajectories) == [None] * len(bare.trajectories)
        for left, right in zip(one.trajectories, bare.trajectories, strict=True):
            np.testing.assert_array_equal(left.token_ids, right.token_ids)
            assert left.turns == right.turns
    assert len({found for group in first for found in returns(group.trajectories)}) > 1, "noise spreads the returns"


def test_no_two_replays_share_their_noise_also_where_trajectories_do() -> None:
    seeds = {replay_seed(ASKED, index, number) for index in range(6) for number in range(3)}
    seeds |= {noise_seed(ASKED, index, shared) for index in range(6) for shared in (True, False)}
    seeds |= {replay_seed(replace(ASKED, seed=9), 0, 0), replay_seed(replace(ASKED, ticket_id="x"), 0, 0)}
    assert len(seeds) == 6 * 3 + 7 + 2 and all(0 <= seed < 2**63 for seed in seeds)


def test_replays_travel_with_the_group_and_through_arrow(codec) -> None:
    (group,) = play(player(codec, Policy(codec), make_env=slippery), ASKED)
    assert returns(from_table(to_table(group))) == returns(group.trajectories)
    summary = summarise(group)
    assert (summary.replays, summary.replay_returns.shape) == (3, (6, 3)) and summary.seconds_replays > 0
    np.testing.assert_array_equal(summary.replay_returns, returns(group.trajectories))
    assert summarise(play(player(codec, Policy(codec)), ticket())[0]).replay_returns is None


def test_nothing_is_replayed_where_no_noise_is_declared(codec) -> None:
    class Dry(FrozenLake):
        resets = 0

        def reset(self, **about):
            Dry.resets += 1
            return super().reset(**about)

    (group,) = play(player(codec, Policy(codec), make_env=lambda task: Dry(slip_rate=0.0)), ASKED)
    assert returns(group.trajectories) == [()] * 6 and Dry.resets == 6
    assert summarise(group).replay_returns.shape == (6, 0)


class BadAfterwards(FrozenLake):
    """Sound in its first episode; a later reset raises or hangs."""

    hangs = False
    release, clock = threading.Event(), None
    made = 0

    def __init__(self) -> None:
        super().__init__(slip_rate=0.6)
        BadAfterwards.made += 1
        self.resets = 0

    def reset(self, **about):
        self.resets += 1
        if self.resets > 1:
            if not self.hangs:
                raise OSError("the service is gone")
            BadAfterwards.clock.move(PAST_IT_S)
            BadAfterwards.release.wait(60)
        return super().reset(**about)


@pytest.mark.parametrize("hangs", [False, True])
def test_a_replay_that_fails_costs_the_replays_of_its_trajectory_and_nothing_else(
    codec, hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    BadAfterwards.hangs, BadAfterwards.made = hangs, 0
    clock = BadAfterwards.clock = MovedClock(monkeypatch, step_pool)
    BadAfterwards.release.clear()
    sound = iter([False, True, True, True])

    def make_env(task: Task) -> FrozenLake:
        return slippery(task) if next(sound, True) else BadAfterwards()

    try:
        groups = play(
            player(codec, Answers(codec), make_env=make_env, step_timeout_s=BOUND_S),
            replace(ASKED, group_size=4),
            run=clock.run,
        )
    finally:
        BadAfterwards.release.set()
    (trajectories,) = [group.trajectories for group in groups]
    assert all(one.failure is None and one.turns for one in trajectories)
    assert sorted(found is None for found in returns(trajectories)) == [False, False, False, True]
    summary = summarise(groups[0])
    assert np.isnan(summary.replay_returns).sum() == 3, "one trajectory has no replays"
    assert summary.replay_failure.startswith(
        "call still running after 10 s" if hangs else "OSError: the service is gone"
    )


def test_an_environment_that_failed_in_a_replay_is_not_used_again(codec) -> None:
    BadAfterwards.hangs, BadAfterwards.made = False, 0
    one = player(codec, Answers(codec), make_env=lambda task: BadAfterwards())
    tickets = [replace(ASKED, ticket_id=name, group_size=2) for name in ("a", "b")]
    groups = play(one, *tickets)
    assert BadAfterwards.made == 4
    assert all(t.failure is None and t.replay_returns is None for group in groups for t in group.trajectories)


class SlowAfterwards(FrozenLake):
    """Takes 50 s of the clock for each step of a replay."""

    clock = None

    def step(self, action):
        if self.late:
            SlowAfterwards.clock.move(50.0)
        return super().step(action)

    def reset(self, **about):
        self.late = hasattr(self, "late")
        return super().reset(**about)


def test_the_replays_of_a_trajectory_end_in_bounded_time(codec, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SlowAfterwards.clock = MovedClock(monkeypatch, step_pool, replaying)
    monkeypatch.setattr(Replay.advance, "__defaults__", (clock.monotonic,))
    bounds = {"episode_timeout_s": 30.0, "step_timeout_s": 1e5}
    env = player(codec, Answers(codec), make_env=lambda task: SlowAfterwards(slip_rate=0.9), **bounds)
    (group,) = play(env, replace(ASKED, group_size=1, replays=4), run=clock.run, within_s=1e5)
    (only,) = group.trajectories
    assert only.failure is None and only.replay_returns is None
    assert "and 120.0 s are allowed (environment_actor.episode_timeout_s for each)" in only.replay_failure


def test_replays_that_wait_for_those_of_other_trajectories_are_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by a reviewer: the wait for the one step thread counted, so all trajectories were late together."""
    clock = MovedClock(monkeypatch, step_pool, replaying)

    class Playing:
        left = 2

        def advance(self) -> float | None:
            clock.move(2.0)
            self.left -= 1
            return None if self.left else 1.0

    episode = SimpleNamespace(noisy=True, replay=lambda seed: Playing())

    async def together() -> list[Replayed]:
        steps = StepPool(100.0)
        try:
            return await asyncio.gather(*(replay(episode, ASKED, index, steps, 30.0) for index in range(15)))
        finally:
            steps.close()

    found = clock.run(together())
    assert max(one.seconds for one in found) > 30 * ASKED.replays, "longer than one trajectory's replays may run"
    assert [one.returns for one in found] == [(1.0,) * ASKED.replays] * 15


def test_reward_noise_makes_an_environment_without_noise_worth_replaying(codec) -> None:
    one = player(codec, Policy(codec), make_env=lambda task: FrozenLake(slip_rate=0.0))
    one._mixture = Mixture.of(EnvironmentConfig(reward_noise=RewardNoise(std=2.0)))
    (group,) = play(one, ASKED)
    assert len({value for found in returns(group.trajectories) for value in found}) == 18


# --- what the user reads ---


class Live(FrozenLake):
    replayable = False


@pytest.mark.parametrize(
    ("env", "std", "settings", "says"),
    [
        (make("FrozenLake"), 0.0, {}, []),
        (make("FrozenLake"), 0.0, {"replays": 2}, ["filter.replays: each trajectory is replayed 2 times"]),
        (
            make("FrozenLake", options={"slip_rate": 0.0}),
            0.0,
            {"statistic": "policy_variance"},
            ["filter.statistic=policy_variance: E declares no noise, so nothing is replayed"],
        ),
        (
            make("FrozenLake", options={"slip_rate": 0.0}),
            1.0,
            {"statistic": "policy_variance"},
            ["filter.statistic=policy_variance: each trajectory is replayed 4 times"],
        ),
    ],
)
def test_the_run_says_at_its_start_what_is_replayed(env, std, settings, says) -> None:
    config = EnvironmentConfig(name="E", reward_noise=RewardNoise(std=std))
    found = notes_on_replays(env, config, FilterConfig(**settings))
    assert len(found) == len(says) and all(text.startswith(part) for text, part in zip(found, says, strict=True))


def test_an_environment_that_cannot_be_replayed_is_refused_where_replays_are_asked_for() -> None:
    with pytest.raises(ValueError, match=r"filter.statistic=policy_variance replays .*\(replayable: false\)"):
        notes_on_replays(Live(), EnvironmentConfig(), FilterConfig(statistic="policy_variance"))
    assert notes_on_replays(Live(), EnvironmentConfig(), FilterConfig()) == []
