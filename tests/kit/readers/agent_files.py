"""Small files in the form in which programs that run agents write theirs, made by hand after their sources."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.kit.readers.trainer_files import SAMPLES, jsonl

TOOL = {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}
CALL = {"id": "call_0", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 2}'}}


def choice(said: str, **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": said, "refusal": None, "tool_calls": None}
    return {"finish_reason": "stop", "index": 0, "message": message, "logprobs": None, **more}


def trajectory(prompt: str, said: str, reward: float, **more: Any) -> dict[str, Any]:
    """ART, `Trajectory` (`art/trajectories/__init__.py`): a conversation with choices among its messages."""
    return {
        "messages_and_choices": [{"role": "user", "content": prompt}, choice(said)],
        "tools": [{"type": "function", "function": TOOL}],
        "additional_histories": [],
        "reward": reward,
        "initial_policy_version": 6,
        "final_policy_version": 7,
        "metrics": {"duration": 1.5},
        "metadata": {},
        "logs": [],
        **more,
    }


def art_groups() -> list[dict[str, Any]]:
    """Two groups of two; a third rollout of the second has raised an exception."""
    made = [trajectory(*sample) for sample in SAMPLES]
    raised = {"type": "builtins.ValueError", "message": "no", "traceback": ""}
    return [
        {"trajectories": made[:2], "exceptions": [], "metadata": {}, "metrics": {}, "logs": []},
        {"trajectories": made[2:], "exceptions": [raised], "metadata": {}, "metrics": {}, "logs": []},
    ]


def art_jsonl(folder: Path, step: int = 100) -> Path:
    """ART before 0.5, as `art/utils/trajectory_migration.py` reads it: a group in each line."""
    return jsonl(folder / "trajectories" / "train" / f"{step:04d}.jsonl", art_groups())


def art_first_parquet(folder: Path, step: int = 100, split: str = "train") -> Path:
    """ART 0.5 in its first releases: columns alone."""
    rows = [
        {
            "group_index": index,
            "group_metadata": None,
            "group_metrics": None,
            "group_logs": None,
            "reward": one["reward"],
            "metrics": json.dumps(one["metrics"]),
            "metadata": None,
            "tools": json.dumps(one["tools"]),
            "logs": None,
            "messages": [flat(item) for item in one["messages_and_choices"]],
        }
        for index, group in enumerate(art_groups())
        for one in group["trajectories"]
    ]
    return table(folder / "trajectories" / split / f"{step:04d}.parquet", rows)


def flat(item: dict[str, Any]) -> dict[str, Any]:
    message = item.get("message", item)
    calls = message.get("tool_calls")
    found = {"role": message["role"], "content": message["content"], "tool_calls": calls and json.dumps(calls)}
    return found | {"tool_call_id": None, "trainable": "message" in item}


def table(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def nemo_gym_rollout(prompt: str, said: str, reward: float, exact: bool) -> dict[str, Any]:
    """NeMo Gym 0.7.0, a result of `rollout_collection.py`, with the ids of a policy that is trained if `exact`. The
    first turn calls a tool; the second answers."""
    first = len(prompt)
    thought, _, answer = said.removeprefix("<think>").partition("</think>")
    ids = [
        {"prompt_token_ids": [first, 9], "generation_token_ids": [20, 21], "generation_log_probs": [-0.1, -0.2]},
        {"prompt_token_ids": [first, 9, 20, 21, 30], "generation_token_ids": [22], "generation_log_probs": [-0.3]},
    ]
    call = {"type": "function_call", "call_id": "call_0", "name": "add", "arguments": '{"a": 2, "b": 2}', "id": "f"}
    text = {"type": "output_text", "text": answer, "annotations": []}
    message = {"type": "message", "role": "assistant", "id": "m", "status": "completed", "content": [text]}
    output = [
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "I add."}]},
        call | (ids[0] if exact else {}),
        {"type": "function_call_output", "call_id": "call_0", "output": "4"},
        {"type": "reasoning", "id": "s", "summary": [{"type": "summary_text", "text": thought}]},
        message | (ids[1] if exact else {}),
    ]
    asked = {
        "input": [{"role": "developer", "content": "Add."}, {"role": "user", "content": prompt}],
        "tools": [{"type": "function", **TOOL, "strict": True}],
    }
    return {
        "responses_create_params": asked,
        "response": {"id": "resp", "object": "response", "status": "completed", "output": output, "tools": []},
        "reward": reward,
        "agent_ref": {"type": "responses_api_agents", "name": "simple"},
    }


def nemo_gym(folder: Path, exact: bool = True) -> Path:
    rows = [
        {"_ng_task_index": index // 2, "_ng_rollout_index": index % 2, **nemo_gym_rollout(*sample, exact)}
        for index, sample in enumerate(SAMPLES)
    ]
    masked = {**rows[0], "_ng_rollout_index": 2, "mask_sample": True, "failure_kind": "lost_session"}
    lost = {"_ng_task_index": 1, "_ng_rollout_index": 2, "_ng_failure_class": "agent_run_error"}
    return jsonl(folder / "rollouts.jsonl", [*rows, masked, lost])


def swe_agent(folder: Path, instance: str = "sum-1", status: str = "submitted") -> Path:
    """SWE-agent, `DefaultAgent.get_trajectory_data` (`sweagent/agent/agents.py`, commit 04ab2352). The first answer has
    no action, so that the model is asked again, which the history does not show; the next calls a tool and thinks; the
    last step is SWE-agent's own."""
    system = {"role": "system", "content": "Mend it.", "agent": "main", "message_type": "system_prompt"}
    user = {"role": "user", "content": f"The fault {instance}.", "agent": "main", "message_type": "observation"}
    again = [
        {"role": "assistant", "content": "Hm.", "agent": "main", "message_type": "assistant"},
        {"role": "user", "content": "Give an action.", "agent": "main", "message_type": "user"},
    ]
    said = {
        "role": "assistant",
        "content": "I look.",
        "thought": "I look.",
        "action": "ls",
        "agent": "main",
        "tool_calls": [CALL],
        "message_type": "action",
        "thinking_blocks": [{"type": "thinking", "thinking": "Where is it?"}],
    }
    seen = {
        "role": "tool",
        "content": "a.py",
        "agent": "main",
        "tool_call_ids": ["call_0"],
        "message_type": "observation",
    }
    last = {"role": "assistant", "content": "Done.", "agent": "main", "tool_calls": None, "thinking_blocks": []}

    def step(response: str, query: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        found = {"action": "", "observation": "", "response": response, "thought": response, "execution_time": 0.1}
        return found | {"state": {}, "query": query, "extra_info": {}} | more

    data = {
        "trajectory": [
            step("Hm.", [system, user]),
            step("I look.", [system, user, *again]),
            step("Done.", [system, user, said, seen], reasoning_content="All is done."),
            step("Exit due to cost limit", [{}]),
        ],
        "history": [system, user, said, seen, last],
        "info": {"exit_status": status, "submission": "diff", "model_stats": {"api_calls": 3}},
        "replay_config": json.dumps({"problem_statement": {"type": "text", "id": instance, "text": "…"}}),
        "environment": "main",
    }
    path = folder / instance / f"{instance}.traj"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=2))
    return path


def langfuse(folder: Path) -> Path:
    """Langfuse, the page's export of observations (`worker/src/features/database-read-stream/event-stream.ts`, commit
    03347058): spans among them, a column for each score."""
    tools = [{"type": "function", "function": TOOL}]
    rows = [
        {
            "id": f"o{index}",
            "traceId": f"t{index}",
            "type": "GENERATION",
            "name": "chat",
            "level": "DEFAULT",
            "input": {"messages": [{"role": "user", "content": prompt}], "tools": tools},
            "output": {"role": "assistant", "content": said},
            "metadata": {},
            "latencyMs": 12,
            "tags": [],
            "comments": [],
            "correct": [reward],
        }
        for index, (prompt, said, reward) in enumerate(SAMPLES)
    ]
    span = {**rows[0], "id": "s", "type": "SPAN", "input": {"a": 1}, "output": None, "correct": None}
    lost = {**rows[0], "id": "e", "level": "ERROR", "statusMessage": "429", "output": None}
    return jsonl(folder / "observations.jsonl", [*rows, span, lost])


def langfuse_store(folder: Path) -> Path:
    """The same as Langfuse writes it to a store (its page "Blob storage export field reference"): other names, and what
    was asked and said as JSON in text."""
    rows = [
        {
            "id": f"o{index}",
            "trace_id": f"t{index}",
            "type": "GENERATION",
            "level": "DEFAULT",
            "input": json.dumps([{"role": "user", "content": prompt}]),
            "output": said,
        }
        for index, (prompt, said, _) in enumerate(SAMPLES)
    ]
    return jsonl(folder / "observations_v2" / "1.jsonl", rows)
