"""Trajectories of agents: FrozenLake played by a program equals the built-in game, and what a fault costs."""

from __future__ import annotations

import asyncio
import os
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from docs.examples.frozen_lake_agent import OPTIONS
from squelch.actors.config import EnvironmentActorConfig
from squelch.actors.play.codec import ChatCodec
from squelch.actors.play.generation import GenerationFailed
from squelch.actors.play.player import EnvironmentPlayer
from squelch.actors.play.seeds import noise_seed
from squelch.actors.sampling import SamplingConfig
from squelch.envs.agent import called, folders, keeper
from squelch.envs.agent.environment import Agent
from squelch.envs.config import EnvironmentConfig, EnvironmentEntry
from squelch.envs.mixture import Mixture
from squelch.kit.records.failures import Failure, FailureCause
from squelch.kit.records.records import Group, Task, Ticket
from squelch.kit.scoring.probe_scoring import draw_probe
from tests.actors.play.test_player import LIMIT, Policy
from tests.moved_clock import MovedClock

USER = Path(__file__).parents[2] / "envs" / "agent" / "user_agent.py"
ENDED = "the agent's process ended with exit code 3"
AGENT = Path(__file__).parents[3] / "docs" / "examples" / "frozen_lake_agent.py"


def play(
    codec: ChatCodec,
    generate: Any,
    environment: Any,
    *tickets: Ticket,
    clock: MovedClock | None = None,
    **bounds: Any,
) -> list[Group]:
    config = EnvironmentActorConfig(step_timeout_s=60, **bounds)
    player = EnvironmentPlayer(codec, environment, SamplingConfig(max_tokens_per_turn=LIMIT), config, 4096, generate)

    async def together() -> list[Group]:
        async with asyncio.timeout(180):
            try:
                return list(await asyncio.gather(*map(player.play, tickets)))
            finally:
                await called.close_hosts()
                await player.end_agents()

    try:
        return asyncio.run(together()) if clock is None else clock.run(together())
    finally:
        player.close()


def ticket(name: str, options: dict[str, Any], size: int = 8, **more: Any) -> Ticket:
    return Ticket("000001-000", 1, Task(name, 5, options=tuple(options.items()), **more), size, 3, 1.0, "rollout-0")


def one_agent(
    codec: ChatCodec,
    script: str,
    size: int = 1,
    generate: Any = None,
    most_turns: int | None = None,
    more: dict[str, Any] | None = None,
    **bounds: Any,
) -> Group:
    """A group played by a command with this script, which has a client `openai` and a function `call(text)`. `more`:
    options of the agent."""
    begin = """
        import json, sys, os, time
        from openai import OpenAI
        openai = OpenAI(max_retries=0)
        def call(text, **more):
            told = [{"role": "user", "content": text}]
            return openai.chat.completions.create(**{"model": "policy", "messages": told, **more})
    """
    command = [sys.executable, "-c", textwrap.dedent(begin) + textwrap.dedent(script)]
    options = {"command": command, **(more or {})}
    environment = EnvironmentConfig(name="Agent", options=options)
    asked = replace(ticket("Agent", options, size), most_turns=most_turns)
    (group,) = play(codec, generate or Policy(codec), environment, asked, **bounds)
    return group


BY = {
    "call": {"call": f"{AGENT}:play", "blocked_s": 300.0},
    "command": {"command": [sys.executable, str(AGENT)]},
    "responses": {"call": f"{USER}:frozen_lake_over_responses", "blocked_s": 300.0},
}


@pytest.mark.parametrize("way", BY)
def test_frozen_lake_played_by_an_agent_over_openais_client_is_the_built_in_game_to_the_bit(codec, way):
    size = 2 if way == "command" else 16
    ours = EnvironmentConfig(name="FrozenLake", options=OPTIONS)
    (game,) = play(codec, Policy(codec, 0.3), ours, ticket("FrozenLake", OPTIONS, size))
    options = {**BY[way], "turns": "squelch"}
    theirs = EnvironmentConfig(name="Agent", options=options)
    (group,) = play(codec, Policy(codec, 0.3), theirs, ticket("Agent", options, size))
    turns = [turn for trajectory in game.trajectories for turn in trajectory.turns]
    assert any(turn.hit_token_limit for turn in turns) and any(turn.format_penalty for turn in turns)
    assert way == "command" or len({len(trajectory.turns) for trajectory in game.trajectories}) > 1
    for ours, theirs in zip(game.trajectories, group.trajectories, strict=True):
        assert theirs.failure is None and theirs.segments == ()
        for name in ("token_ids", "loss_mask", "log_probs"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
            assert getattr(ours, name).dtype == getattr(theirs, name).dtype
        for mine, other in zip(ours.turns, theirs.turns, strict=True):
            assert replace(other, format_valid=mine.format_valid, num_actions=mine.num_actions) == mine
        assert (ours.success, ours.version_spans) == (theirs.success, theirs.version_spans)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("print('{\"reward\": 1}')", "the agent ended without a call that was answered"),
        ("call('hi'); sys.exit(4)", "the agent's command ended with exit code 4"),
        (
            "call('hi'); print('{\"rewards\": [1, 2]}')",
            "the agent reported 2 rewards, and 1 of its calls were answered",
        ),
        ("call('hi'); print('{\"reward\": 1, \"penalties\": []}')", "0 penalties, and 1 of its calls were answered"),
    ],
)
def test_an_agent_that_does_not_end_as_it_should_fails_its_trajectory_with_a_cause(codec, script, said):
    (trajectory,) = one_agent(codec, script).trajectories
    assert trajectory.failure is not None and trajectory.failure.cause is FailureCause.AGENT_ERROR
    assert said in trajectory.failure.detail
    assert bool(trajectory.loss_mask.any()) == ("call" in script), "the tokens that it had are kept"
    assert not trajectory.success and trajectory.episode_return == 0


LATE = """
import json, os, time, urllib.request
head = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}
body = json.dumps({"model": "policy", "messages": [{"role": "user", "content": "hi"}]}).encode()
urllib.request.urlopen(urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, head)).read()
time.sleep(600)
"""
"""Without the package `openai`, whose import takes seconds."""


def test_an_agent_that_is_late_fails_its_trajectory_and_keeps_its_tokens(codec):
    options = {"command": [sys.executable, "-c", LATE]}
    environment = EnvironmentConfig(name="Agent", options=options)
    (group,) = play(codec, Policy(codec), environment, ticket("Agent", options, 1), episode_timeout_s=12)
    (trajectory,) = group.trajectories
    assert trajectory.failure is not None and trajectory.failure.cause is FailureCause.AGENT_ERROR
    assert "the agent still ran after environment_actor.episode_timeout_s=12" in trajectory.failure.detail
    assert trajectory.loss_mask.any() and not trajectory.success and trajectory.episode_return == 0


def test_removing_what_an_agent_left_is_no_time_of_the_agents(codec, monkeypatch):
    clock, removed = MovedClock(monkeypatch), []

    def slow(folder: str) -> None:
        clock.move(61.0)
        keeper.remove(folder)
        removed.append(folder)

    monkeypatch.setattr(folders, "remove", slow)
    (trajectory,) = one_agent(
        codec, "call('hi'); print('{\"reward\": 1}')", clock=clock, episode_timeout_s=60
    ).trajectories
    assert trajectory.failure is None and trajectory.episode_return == 1.0
    assert removed and not any(map(os.path.exists, removed)), "it is gone before its trajectory counts"


def test_an_environment_that_cannot_clean_up_keeps_its_trajectory(codec, monkeypatch, caplog):
    async def fails(self: Agent) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(Agent, "clean_up", fails)
    (trajectory,) = one_agent(codec, "call('hi'); print('{\"reward\": 1}')").trajectories
    assert trajectory.failure is None and "the disk is gone" in caplog.text


def test_the_fixed_probe_takes_the_first_call_of_an_agent_that_fails_because_its_second_is_refused(codec):
    (trajectory,) = one_agent(codec, "call('a'); call('b'); print('{\"reward\": 1}')", most_turns=1).trajectories
    assert trajectory.failure is not None and "a call was refused before" in trajectory.failure.detail
    found = draw_probe({"probe-000": [trajectory]}, 0, 10_000)
    assert found.tasks == ("probe-000",) and not found.excluded["failed"]
    assert found.prompts[0].tolist()[: trajectory.turns[0].sample_start] == trajectory.prompt_ids(0).tolist()


def test_rewards_and_penalties_are_those_of_the_calls_and_the_reward_is_the_last_ones(codec):
    script = "call('a'); call('b'); print('{\"reward\": 1, \"rewards\": [0.25, 0.5], \"penalties\": [-0.1, 0]}')"
    (trajectory,) = one_agent(codec, script).trajectories
    assert trajectory.failure is None and len(trajectory.segments) == 1
    assert [turn.reward for turn in trajectory.turns] == [0.25, 1.5]
    assert [turn.format_penalty for turn in trajectory.turns] == [-0.1, 0.0]
    assert trajectory.success and trajectory.episode_return == 1.75


def test_a_command_that_raises_for_what_the_policy_wrote_earns_its_reward_and_its_title_is_not_trained_on(codec):
    script = "call('title', model='small'); call('a'); raise ValueError('the policy wrote prose')"
    more = {"failure_reward": {"1": -0.5}, "untrained": [{"model": "small"}]}
    (trajectory,) = one_agent(codec, script, more=more).trajectories
    assert trajectory.failure is None and not trajectory.success and trajectory.episode_return == -0.5
    assert trajectory.failure_rewarded is not None and trajectory.failure_rewarded.startswith(
        "the agent's command ended with exit code 1; it last wrote: "
    )
    (title,) = trajectory.untrained
    assert title.rule == "model small" and title.sampled.any() and len(trajectory.turns) == 1
    assert "title" in codec.text(title.token_ids) and "title" not in codec.text(trajectory.token_ids)


def test_side_calls_and_rewarded_failures_of_a_function_leave_its_trajectories_as_they_are(codec):
    def group(function: str, **more: Any) -> Group:
        options = {"call": f"{USER}:{function}", "turns": "squelch", "blocked_s": 300.0, **more}
        environment = EnvironmentConfig(name="Agent", options=options)
        (found,) = play(codec, Policy(codec, versions=lambda _: 0), environment, ticket("Agent", options, 8))
        return found

    rules = {"untrained": [{"model": "title"}], "failure_reward": {"Wrong": -1.0}}
    bare, mixed = group("lake"), group("lake_with_side_calls", **rules)
    assert {one.episode_return == -1.0 for one in bare.trajectories} == {True, False}
    for mine, theirs in zip(bare.trajectories, mixed.trajectories, strict=True):
        assert mine.failure is None and theirs.failure is None
        for name in ("token_ids", "loss_mask", "log_probs"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))
        assert (mine.turns, mine.segments, mine.success) == (theirs.turns, theirs.segments, theirs.success)
        assert [one.rule for one in theirs.untrained] == ["model title"]
        assert (theirs.failure_rewarded is not None) == (mine.episode_return == -1.0)


def test_failed_sampling_is_the_failure_whatever_the_agent_reports(codec):
    async def fails(worker, request):
        raise GenerationFailed("rollout worker rollout-0: gone")

    script = "\ntry: call('hi')\nexcept Exception: pass\nprint('{\"reward\": 1}')"
    (trajectory,) = one_agent(codec, script, generate=fails).trajectories
    assert trajectory.failure == Failure(FailureCause.GENERATION_ERROR, "rollout worker rollout-0: gone")


def test_trajectories_that_others_interrupt_begin_again_and_keep_only_the_calls_that_counted(codec):
    options = {"call": f"{USER}:odd_ones_end_the_process", "blocked_s": 300.0}
    environment, asked = EnvironmentConfig(name="Agent", options=options), ticket("Agent", options, 6)
    (group,) = play(codec, Policy(codec), environment, asked)
    odd = [noise_seed(asked, index, False) % 2 == 1 for index in range(6)]
    assert set(odd) == {True, False}
    for ends, trajectory in zip(odd, group.trajectories, strict=True):
        assert len(trajectory.turns) == 1 and trajectory.segments == ()
        assert trajectory.failure == (Failure(FailureCause.AGENT_ERROR, ENDED) if ends else None)


def test_no_more_commands_than_allowed_run_at_once_and_waiting_for_a_turn_is_no_time_of_the_agents(codec, tmp_path):
    script = f"""
        open({str(tmp_path)!r} + "/" + str(os.getpid()), "w").write("")
        call("hi")
        assert len(os.listdir({str(tmp_path)!r})) <= 2
        time.sleep(0.5)
        os.remove({str(tmp_path)!r} + "/" + str(os.getpid()))
        print('{{"reward": 1}}')
    """
    command = [
        sys.executable,
        "-c",
        "import json, sys, os, time\nfrom openai import OpenAI\n" + textwrap.dedent(script),
    ]
    command[2] = command[2].replace(
        'call("hi")', 'OpenAI().chat.completions.create(model="p", messages=[{"role": "user", "content": "hi"}])'
    )
    options = {"command": command, "max_processes": 2}
    environment = EnvironmentConfig(name="Agent", options=options)
    (group,) = play(codec, Policy(codec), environment, ticket("Agent", options, 4), episode_timeout_s=180)
    assert [one.failure for one in group.trajectories] == [None] * 4


def test_an_agent_and_a_game_are_played_in_one_run(codec):
    options = {**BY["call"], "turns": "squelch"}
    several = Mixture.several(
        (
            EnvironmentEntry(name="FrozenLake", options=OPTIONS),
            EnvironmentEntry(name="Agent", options=options, label="a"),
        )
    )
    tickets = [
        ticket("FrozenLake", OPTIONS, 2, label="FrozenLake"),
        replace(ticket("Agent", options, 2, label="a"), ticket_id="000001-001"),
    ]
    groups = play(codec, Policy(codec), several, *tickets)
    assert [one.failure for group in groups for one in group.trajectories] == [None] * 4
    assert groups[0].task_key != groups[1].task_key
