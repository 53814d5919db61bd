"""Trajectories in ATIF and the jobs of Harbor are read as their own writers write them."""

import json
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from squelch.kit.base.errors import UserError
from squelch.kit.readers import trajectory_rows
from squelch.kit.readers.format_rows import whole
from squelch.kit.readers.records import MAX_OBJECT, object_in
from squelch.kit.readers.reward_tables import RewardTable, read_rewards
from squelch.kit.readers.rows import Rows
from squelch.kit.readers.score_files import read_samples
from squelch.kit.untrusted.files import Unreadable
from tests.kit.readers.trainer_files import jsonl

FILES = Path(__file__).with_name("agents_files")
CALL = {"id": "call_0", "type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 2}}}


@pytest.fixture
def job(tmp_path) -> Path:
    return Path(shutil.copytree(FILES / "sums", tmp_path / "sums"))


def rows(path: Path) -> list[dict[str, Any]]:
    return [row for _, row in read_samples(path).rows]


def rewards(path: Path) -> RewardTable:
    return read_rewards(path, None, (), None)


def changed(path: Path, **found: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **found}))


def test_a_job_is_recognised_with_the_rewards_of_its_trials_in_groups_by_task(job) -> None:
    found = read_samples(job)
    assert found.format.name == "harbor" and found.step is None
    assert [row["rewards"] for row in rows(job)] == [{"reward": reward} for reward in (1, 1, 0, 0) * 2]
    assert len({row["group"] for row in rows(job)}) == 2 and len({row["rollout"] for row in rows(job)}) == 4
    table = rewards(job)
    assert table.groups == [0, 0, 1, 1, 1] and table.rewards[:4] == [1, 0, 1, 0]
    assert rewards(job / "two-and-two__0").rewards == [1.0], "a trial alone"
    assert read_rewards(job.parent, "harbor", (), None).rewards[:4] == [1, 0, 1, 0], "a folder of jobs"


def test_steps_with_ids_are_exact_and_others_are_messages_with_their_tools(job) -> None:
    exact = [whole(read.row) for read in Rows(job / "two-and-two__0")]
    told = [row for row in rows(job) if not row.get("prompt_ids")]
    assert [(row["prompt_ids"], row["completion_ids"], row["logprobs"], row["turn"]) for row in exact] == [
        ([1, 9], [20, 21], [-0.25, -0.5], 0),
        ([1, 9, 20, 21, 30], [22], [-0.125], 1),
    ]
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Three and one?"}]
    called = {"role": "assistant", "content": "", "reasoning_content": "Count up.", "tool_calls": [CALL]}
    assert (told[0]["prompt"], told[0]["completion"]) == (asked, [called])
    assert told[1]["prompt"] == [*asked, called, {"role": "tool", "tool_call_id": "call_0", "content": "4"}]
    assert told[1]["completion"] == [{"role": "assistant", "content": "4", "reasoning_content": "It says 4."}]
    assert all(row["tools"][0]["function"]["name"] == "add" for row in rows(job))


def test_only_what_the_model_said_in_one_call_is_a_row_of_a_trajectory() -> None:
    found = read_samples(FILES / "atif.jsonl")
    assert found.format.name == "atif"
    (row,) = (row for _, row in found.rows)
    assert row["completion"] == [{"role": "assistant", "content": "4", "reasoning_content": "Count up."}]
    assert [message["content"] for message in row["prompt"]] == ["Two and two?", "3", "No.", "looking"]
    assert row["turn"] == 0 and row["rewards"] == {}
    counts = {trajectory_rows.NOT_ONE_CALL: 2, trajectory_rows.COPIED: 1, trajectory_rows.SUBAGENT: 1}
    assert found.notes == [f"left out, {reason}: {count}" for reason, count in counts.items()]
    with pytest.raises(UserError, match="has no column of rewards"):
        rewards(FILES / "atif.jsonl")


def test_a_trajectory_that_goes_on_in_another_file_is_one_rollout(job) -> None:
    agent = job / "two-and-two__0" / "agent"
    told = object_in(agent / "trajectory.json")
    for number in (10, 2):
        said = {**told["steps"][3], "message": str(number)}
        del said["metrics"]
        later = [{**step, "is_copied_context": True} for step in told["steps"][:3]] + [said]
        (agent / f"trajectory.cont-{number}.json").write_text(json.dumps({**told, "steps": later}))
    (agent / "trajectory.summarization-1-summary.json").write_text(json.dumps(told))
    found = rows(job / "two-and-two__0")
    assert [row["turn"] for row in found] == [0, 1, 2, 3]
    assert [row["completion"][0]["content"] for row in found[2:]] == ["2", "10"]
    assert rewards(job / "two-and-two__0").rewards == [1.0]


def test_each_step_of_a_task_is_a_rollout_with_its_own_reward(job) -> None:
    trial = job / "two-and-two__0"
    for name in ("plan", "work"):
        (trial / "steps" / name).mkdir(parents=True)
        shutil.copytree(trial / "agent", trial / "steps" / name / "agent")
    shutil.rmtree(trial / "agent")
    told = {"plan": {"rewards": {"reward": 0.5}}, "work": {"rewards": {"reward": 0}}, "rest": None}
    steps = [{"step_name": name, "verifier_result": result} for name, result in told.items()]
    changed(trial / "result.json", step_results=steps)
    assert [row["rewards"]["reward"] for row in rows(trial) if row.get("turn") == 0] == [0.5, 0]
    table = rewards(trial)
    assert table.groups == [0, 1, 2] and table.rewards[:2] == [0.5, 0] and table.rewards[2] != table.rewards[2]


def test_a_failure_has_no_reward_and_an_agent_that_ran_out_of_time_keeps_its_own(job) -> None:
    late, lost = job / "two-and-two__0" / "result.json", job / "two-and-two__1" / "result.json"
    changed(late, exception_info={"exception_type": "AgentTimeoutError", "policy": {"has_valid_reward": True}})
    changed(lost, exception_info={"exception_type": "ApiRateLimitError", "policy": {"has_valid_reward": False}})

    def told(path: Path) -> list[tuple[Any, Any]]:
        found = trajectory_rows.harbor(object_in(path), "it")
        return [(row.get("failed"), row.get("truncated")) for row in found if isinstance(row, dict)]

    table = rewards(job)
    assert table.groups == [0, 0, 1, 1, 1]
    assert [reward == reward for reward in table.rewards] == [True, True, True, False, False]
    assert told(lost) == [("ApiRateLimitError", False)]
    assert told(job / "two-and-two__4" / "result.json") == [("EnvironmentStartTimeoutError", False)]
    assert any(row["truncated"] for row in rows(job / "two-and-two__0"))


def test_what_stands_after_pictures_is_left_out(job) -> None:
    path = job / "three-and-one__2" / "agent" / "trajectory.json"
    steps = object_in(path)["steps"]
    steps[2]["observation"]["results"][0]["content"] = [
        {"type": "text", "text": "4"},
        {"type": "image", "source": {"media_type": "image/png", "path": "a.png"}},
    ]
    changed(path, steps=steps)
    found = read_samples(path)
    assert len(found.rows) == 1 and found.notes == [f"left out, {trajectory_rows.SHOWN}: 1"]


def test_what_stands_after_a_compaction_is_read_only_if_its_prompt_is_exact(job) -> None:
    boundary = {"context_management": {"type": "compaction", "boundary": "replace"}}
    for trial, turns in (("two-and-two__0", [0, 1]), ("three-and-one__2", [0])):
        path = job / trial / "agent" / "trajectory.json"
        steps = object_in(path)["steps"]
        steps.insert(3, {"step_id": 4, "source": "system", "message": "Compacted.", "extra": boundary})
        changed(path, steps=steps)
        assert [row["turn"] for row in rows(path)] == turns
    assert read_samples(path).notes == [f"left out, {trajectory_rows.REPLACED}: 1"]


def test_a_reward_counts_without_a_trajectory(job) -> None:
    os.remove(job / "two-and-two__1" / "agent" / "trajectory.json")
    assert rewards(job).rewards[:4] == [1, 0, 1, 0]
    assert f"left out, {trajectory_rows.UNTOLD}: 1" in read_samples(job).notes


def test_what_an_agent_leaves_in_its_trials_folder_is_no_trial(job) -> None:
    trial = job / "two-and-two__1"
    for place in ("artifacts", "agent/logs", "verifier"):
        (trial / place).mkdir(parents=True, exist_ok=True)
        shutil.copy(job / "two-and-two__0" / "result.json", trial / place / "result.json")
        changed(trial / place / "result.json", trial_name=f"told by the agent in {place}")
        (trial / place / "trial.log").write_text("")
    assert rewards(job).rewards[:4] == [1, 0, 1, 0] and len(rewards(job).rewards) == 5
    assert len(rows(trial)) == 2
    os.remove(trial / "agent" / "trajectory.json")
    os.mkfifo(trial / "agent" / "trajectory.json")
    with pytest.raises(UserError, match=r"trajectory\.json is a named pipe"):
        read_samples(trial)
    os.remove(trial / "agent" / "trajectory.json")
    (trial / "agent" / "trajectory.json").write_text('{"steps": [')
    with pytest.raises(UserError, match=r"trajectory\.json: not JSON"):
        read_samples(trial)


def test_a_job_that_compares_models_keeps_their_groups_apart_and_says_so(job) -> None:
    info = {"name": "adder", "model_info": {"name": "other"}}
    changed(job / "two-and-two__1" / "result.json", agent_info=info)
    path = job / "two-and-two__1" / "agent" / "trajectory.json"
    changed(path, agent={**object_in(path)["agent"], "model_name": "other"})
    assert len({row["group"] for row in rows(job)}) == 3
    assert "the rows were sampled by 2 models (other, policy), and are scored with one" in read_samples(job).notes


def test_indentation_does_not_count_towards_the_length_of_an_object(tmp_path) -> None:
    path = tmp_path / "trajectory.json"
    path.write_bytes(b"{\n" + (b" " * 2**20 + b"\n") * 20 + b'"a":\n\t 1}')
    assert object_in(path) == {"a": 1}
    path.write_bytes(b'{"a": "' + b" " * MAX_OBJECT + b'"}')
    with pytest.raises(Unreadable, match="larger than 64 MiB"):
        object_in(path)


ODD = (None, [], "", "x", 3, True, ["x"], {"x": 1}, [{"x": 1}])


def odd(value: Any) -> list[Any]:
    """The value with each part of it replaced by each odd one."""
    found = list(ODD)
    if isinstance(value, dict):
        found += [{**value, key: other} for key, inner in value.items() for other in odd(inner)]
        found += [{k: v for k, v in value.items() if k != key} for key in value]
    if isinstance(value, list):
        found += [[*value[:k], other, *value[k + 1 :]] for k, inner in enumerate(value) for other in odd(inner)]
    return found


def test_any_part_may_be_odd_and_is_read_or_refused_in_one_paragraph(tmp_path) -> None:
    valid = json.loads((FILES / "atif.jsonl").read_text())
    result = object_in(FILES / "sums" / "two-and-two__0" / "result.json")
    raised = {"exception_type": "x", "policy": {"has_valid_reward": True}}
    trial = {name: result[name] for name in ("trial_name", "task_name", "agent_info", "verifier_result")}
    stepped = trial | {"step_results": [{"step_name": "a", "verifier_result": {}, "exception_info": raised}]}
    said = {"role": "assistant", "content": "b", "tool_calls": [CALL]}
    chat = {"messages": [{"role": "user", "content": "a"}, said], "tools": [CALL], "system": "s", "reward": 1.0}
    talk = {"conversations": [{"from": "human", "value": "a"}, {"from": "function_call", "value": '[{"name": 1}]'}]}
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "trajectory.json").write_text(json.dumps(valid))
    asked = {"atif": [valid], "harbor": [trial | {"exception_info": raised}, stepped], "chat": [chat, talk]}
    read = refused = 0
    for name, one in [(name, one) for name, values in asked.items() for value in values for one in odd(value)]:
        if not isinstance(one, dict):
            continue
        path = jsonl(tmp_path / "row.jsonl", [one])
        for reader in (partial(read_samples, path, None, name), partial(read_rewards, path, name, ("reward",), None)):
            try:
                reader()
                read += 1
            except UserError as error:
                refused += 1
                assert "\n" not in str(error) and len(str(error)) < 2000
    assert min(read, refused) > 300
