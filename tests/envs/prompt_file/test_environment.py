"""Prompts of a file as tasks of a run: what the policy is shown, how a group is rewarded, and what a fault costs."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from squelch.actors.config import EnvironmentActorConfig
from squelch.actors.messages import Completion, GenerationRequest
from squelch.actors.play.codec import ChatCodec
from squelch.actors.play.player import EnvironmentPlayer
from squelch.actors.sampling import SamplingConfig
from squelch.cluster.control.admission import TicketSource
from squelch.envs.config import EnvironmentConfig, EnvironmentEntry, FormatConfig
from squelch.envs.mixture import Mixture
from squelch.envs.prompt_file.rows import tools_of
from squelch.envs.registry import make
from squelch.envs.remote.__main__ import server_of
from squelch.kit.records.failures import FailureCause
from squelch.kit.records.records import Group, Task, Ticket
from tests.actors.formats.made import format_of, needs_package
from tests.actors.formats.test_own import SHOWS_TOOLS
from tests.actors.play.test_codec import byte_level_bpe, save_model

REWARDS = Path(__file__).with_name("user_rewards.py")
TEXTS = ["<think> 2 and 3</think>It is 5", "6", "<think>never closed", "5" * 30]


def options(folder: Path, *functions: str, **more: Any) -> dict[str, Any]:
    path = folder / "questions.jsonl"
    rows = [{"prompt": [{"role": "user", "content": f"2 + 3? ({i})"}], "answer": "5"} for i in range(12)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"data": str(path), "reward": {f"{REWARDS}:{name}": 1.0 for name in functions}, **more}


def play(codec: ChatCodec, given: dict[str, Any], cut: bool = False) -> tuple[Group, list[GenerationRequest]]:
    """A group of one trajectory for each of TEXTS."""
    asked: list[GenerationRequest] = []

    async def generate(worker: str, request: GenerationRequest) -> Completion:
        asked.append(request)
        index = int(request.request_id.split("/")[1])
        ids = np.array([*codec.encode(TEXTS[index]), *([] if cut else codec.stop_ids[:1])], np.int32)
        return Completion(request.request_id, ids, np.zeros(len(ids), np.float32), "length" if cut else "stop", 0, 0)

    environment = EnvironmentConfig(name="Prompts", options=given)
    one = EnvironmentPlayer(codec, environment, SamplingConfig(), EnvironmentActorConfig(), 4096, generate)
    task = Task("Prompts", 5, options=tuple(given.items()))
    try:
        ticket = Ticket("000001-000", 1, task, len(TEXTS), 3, 1.0, "rollout-0")
        return asyncio.run(asyncio.wait_for(one.play(ticket), 60)), asked
    finally:
        one.close()


def test_the_prompt_is_the_files_alone_and_the_completion_all_that_was_sampled(codec, tmp_path):
    given = options(tmp_path, "right", "short")
    group, asked = play(codec, given)
    shown = "".join(codec.token_bytes(int(i)).decode() for i in asked[0].prompt_ids)
    env = make("Prompts", "train", given)
    content = env.reset(seed=5, options={"noise_seed": 0})[1]["messages"][0]["content"]
    assert content in shown and "<think>" not in shown and "<answer>" not in shown
    assert [t.episode_return for t in group.trajectories] == [1.0, 1.0, 1.0, 1.0]
    assert [t.success for t in group.trajectories] == [True] * 4
    assert all(t.turns[0].format_valid and t.turns[0].format_penalty == 0 for t in group.trajectories)


def test_reward_functions_get_completions_without_special_tokens_as_in_trl(codec):
    (start,) = (index for index in range(codec.vocab_size) if codec.token_bytes(index) == b"<|im_start|>")
    ids = [*codec.encode("it is"), start, *codec.encode(" 5"), *codec.stop_ids[:1]]
    assert codec.text(ids) == "it is<|im_start|> 5"
    assert codec.completion_text(ids) == "it is 5"


def test_a_group_is_rewarded_in_one_call_and_success_begins_at_its_bound(codec, tmp_path):
    group, _ = play(codec, options(tmp_path, "right", "short", success_at=1.5))
    assert [t.episode_return for t in group.trajectories] == [1.0, 1.0, 1.0, 1.0]
    group, _ = play(codec, options(tmp_path, "right", success_at=0.5))
    assert [(t.episode_return, t.success) for t in group.trajectories] == [
        (1.0, True),
        (0.0, False),
        (0.0, False),
        (1.0, True),
    ]


def test_reasoning_is_what_a_turn_opens_itself(codec, tmp_path):
    group, _ = play(codec, options(tmp_path, "right"))
    thought, none, unclosed, _ = group.trajectories
    assert codec.text(thought.reasoning_ids(0)).strip() == "2 and 3"
    assert codec.text(thought.prompt_ids(0)).rstrip().endswith("<think>")
    assert len(none.reasoning_ids(0)) == 0 and none.turns[0].reasoning_length == 0
    assert not unclosed.turns[0].closed_reasoning and unclosed.turns[0].reasoning_length > 0


def test_a_turn_that_is_cut_counts_as_badly_formatted_and_earns_no_penalty(codec, tmp_path):
    group, _ = play(codec, options(tmp_path, "right"), cut=True)
    turns = [t.turns[0] for t in group.trajectories]
    assert not any(turn.format_valid for turn in turns) and all(turn.format_penalty == 0 for turn in turns)
    assert group.trajectories[0].episode_return == 1.0


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("raising", "the reward function .*:raising raised KeyError"),
        ("nan", "the reward function .*:nan returned the reward nan"),
        ("ending", r"process ended in group_rewards\(\) with status 3; it last wrote: about to go"),
        ("hanging", r"group_rewards\(\) did not return within 1.5 s \(it was in user_rewards.py"),
    ],
)
def test_a_bad_reward_function_fails_its_group_by_name_and_never_pays_0(codec, tmp_path, function, said):
    group, _ = play(codec, options(tmp_path, "right", function, timeout_s=1.5 if function == "hanging" else 60.0))
    for trajectory in group.trajectories:
        assert trajectory.failure is not None and trajectory.failure.cause is FailureCause.ENVIRONMENT_ERROR
        assert len(trajectory.token_ids) and not trajectory.success
        assert re.search(said, trajectory.failure.detail), trajectory.failure.detail


def test_where_no_function_applies_only_those_trajectories_fail(codec, tmp_path):
    group, _ = play(codec, options(tmp_path, "short"))
    failures = [trajectory.failure for trajectory in group.trajectories]
    assert [failure is None for failure in failures] == [False, True, True, False]
    assert "no reward function applies" in failures[0].detail


def test_bad_settings_are_refused_before_anything_starts(tmp_path):
    good = options(tmp_path, "right")
    for changed, complaint in (
        ({"data": f"{tmp_path}/none.jsonl"}, "environment.options.data: .*none.jsonl: no such file"),
        ({"reward": "rewards.py"}, "environment.options.reward: 'rewards.py' is not of the form"),
        ({"reward": {}}, "environment.options.reward: name at least one reward function"),
        ({"reward": {f"{REWARDS}:right": 0}}, "environment.options.reward: a function of weight 0 adds nothing"),
        ({"prompt_column": "question"}, "no column 'question'; it has prompt, answer"),
        ({"datas": "x"}, "environment.options.datas: Prompts has no such option; did you mean 'data'?"),
    ):
        with pytest.raises(ValueError, match=complaint):
            make("Prompts", "train", {**good, **changed})


def test_what_would_read_its_turns_in_another_format_refuses_it(tmp_path):
    given = options(tmp_path, "right")
    with pytest.raises(ValueError, match="Prompts has a format or group rewards of its own, which OwnProcess does not"):
        make("OwnProcess", "train", {"environment": "Prompts", "options": given})
    with pytest.raises(ValueError, match="which the HTTP contract does not pass on"):
        server_of("Prompts", given)


def test_tools_of_a_row_are_part_of_its_prompt(tmp_path):
    shows = ChatCodec(save_model(tmp_path / "model", byte_level_bpe(), SHOWS_TOOLS))
    given = options(tmp_path, "right")
    path, tool = Path(given["data"]), {"type": "function", "function": {"name": "adds", "parameters": {}}}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for number, row in enumerate(rows):
        row["tools"] = [[tool], json.dumps([tool]), None, []][number % 4]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    shown = set()
    for seed in range(len(rows)):
        env = make("Prompts", "train", given)
        shown.add(json.dumps(env.reset(seed=seed, options={"noise_seed": 0})[1]["tools"]))
    assert shown == {json.dumps([tool]), "null"}
    _, asked = play(shows, given)
    prompt = "".join(shows.token_bytes(int(i)).decode() for i in asked[0].prompt_ids)
    tools = make("Prompts", "train", given).reset(seed=5, options={"noise_seed": 0})[1]["tools"]
    assert ('"name": "adds"' in prompt) == bool(tools)


@pytest.mark.parametrize("tools", ["[", 5, [5], [{"type": "function"}], "{}"])
def test_tools_that_are_no_schemas_are_refused(tools):
    with pytest.raises(ValueError, match="JSON schemas"):
        tools_of(tools)


def test_a_row_whose_tools_are_no_schemas_is_named_with_what_to_do(tmp_path):
    given = options(tmp_path, "right")
    path = Path(given["data"])
    rows = [json.loads(line) | {"tools": ["search"]} for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ValueError, match=rf"{path.name}, line 1, column tools: .*options.tools_column.*JSON schemas"):
        make("Prompts", "train", given)


@needs_package
def test_reasoning_is_found_by_the_models_format(tmp_path):
    thinking = format_of("qwen3")
    group, _ = play(thinking, options(tmp_path, "right"))
    thought, none, unclosed, _ = group.trajectories
    assert thinking.text(thought.reasoning_ids(0)).strip() == "2 and 3"
    assert none.turns[0].reasoning_length == 0 and not unclosed.turns[0].closed_reasoning
    silent = format_of("llama-3")
    group, _ = play(silent, options(tmp_path, "right"))
    assert not silent.reasons and all(t.turns[0].reasoning_length == 0 for t in group.trajectories)


def test_a_file_of_prompts_and_an_environment_of_squelchs_turns_share_a_run_in_our_own_format(codec, tmp_path):
    """Each keeps its own turns: nothing is added to a prompt of the file, and the other has its `<think>`."""
    asked: list[GenerationRequest] = []

    async def generate(worker: str, request: GenerationRequest) -> Completion:
        asked.append(request)
        text = "<think> 2</think>5" if request.max_tokens == 30 else " go up</think><answer>Up</answer>"
        ids = np.array([*codec.encode(text), codec.stop_ids[0]], np.int32)
        return Completion(request.request_id, ids, np.zeros(len(ids), np.float32), "stop", 0, 0)

    file = EnvironmentEntry(name="Prompts", options=options(tmp_path, "right"), max_tokens_per_turn=30)
    mixture = Mixture.several([file, EnvironmentEntry(name="FrozenLake", format=FormatConfig(max_turns=2))])
    one = EnvironmentPlayer(codec, mixture, SamplingConfig(), EnvironmentActorConfig(), 4096, generate)
    tickets = [replace(taken, worker="rollout-0") for taken in TicketSource(mixture, 2, 3, 1.0).take(1, 4)]

    async def together() -> list[Group]:
        async with asyncio.timeout(180):
            return list(await asyncio.gather(*map(one.play, tickets)))

    try:
        groups = asyncio.run(together())
    finally:
        one.close()
    assert [group.ticket.task.label for group in groups] == ["Prompts", "FrozenLake"] * 2
    for group in groups:
        first = next(one for one in asked if one.request_id.startswith(f"{group.ticket.ticket_id}/0/0"))
        opens = codec.text(first.prompt_ids).rstrip().endswith("<think>")
        assert opens == (group.ticket.task.label == "FrozenLake")
        for trajectory in group.trajectories:
            assert trajectory.failure is None and all(turn.format_valid for turn in trajectory.turns)
            thought = codec.text(trajectory.reasoning_ids(0)).strip()
            assert thought == ("go up" if opens else "2") and trajectory.episode_return == (0.0 if opens else 1.0)
