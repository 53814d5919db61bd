"""Trajectories of agents in ATIF (version 1.8), and the trials of Harbor that hold them, as rows. Pure.

    trial ─▶ its trajectory, or one for each step of its task, and what continues them ─▶ steps ─▶ calls of the model

A step of the agent is one row. Its prompt is what stands before it: exact ids if the agent collects them, and else the
messages of the earlier steps, as the agent recorded them, which need not be what the model read. Subagents, steps that
were copied from an earlier trajectory, and steps of several calls of the model, or of none, are no rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from squelch.kit.base.errors import UserError
from squelch.kit.base.values import first, object_of
from squelch.kit.readers.chat_rows import NO_PROMPT, Message, message_row, tools_of
from squelch.kit.readers.format_rows import LeftOut, Row, digest_of
from squelch.kit.readers.message_graph import SHORT
from squelch.kit.readers.records import Record
from squelch.kit.untrusted.files import brief

TRAJECTORIES = "trajectories"
"""Under which the trajectories of a trial are added to its result, by the step of its task, in order."""
WHOLE = ""
"""The step of a task that has none."""
COPIED = "a step that was copied from an earlier trajectory"
NOT_ONE_CALL = "a step of no call of the model, or of several"
SHOWN = "a step after pictures or sounds, which are not read from trajectories"
REPLACED = "a step after its context was compacted, whose prompt is not recorded"
SUBAGENT = "a trajectory of a subagent"
UNTOLD = "a trial without a trajectory that can be read"
_ROLES = {"system": "system", "user": "user", "agent": "assistant"}
_LIMITS = frozenset(
    {
        "AgentTimeoutError",
        "ContextLengthExceededError",
        "ContextWindowExceededError",
        "OutputLengthExceededError",
        "OutputTokenExceededError",
    }
)
"""Errors of Harbor's at a limit."""


def atif(record: Record, where: str) -> Iterator[Row | LeftOut]:
    """A trajectory alone, whose reward is not known. Its group is that of all that begin alike."""
    yield from _trajectory(record, {"rollout": where, "rewards": {}}, where)


def harbor(record: Record, where: str) -> Iterator[Row | LeftOut]:
    """Harbor 0.26, `TrialResult`, with its trajectories: each step of its task is a rollout. The summary of a job, in a
    file of the same name, holds no rows."""
    if "trial_name" not in record:
        return
    agent, held = object_of(record.get("agent_info")), object_of(record.get(TRAJECTORIES))
    sampler = [agent.get("name"), object_of(agent.get("model_info")).get("name")]
    for part in _objects(record.get("step_results")) or [record]:
        name = part["step_name"] if isinstance(part.get("step_name"), str) else WHOLE
        rewards = object_of(object_of(part.get("verifier_result")).get("rewards"))
        raised = object_of(part.get("exception_info"))
        counts = bool(rewards) and object_of(raised.get("policy")).get("has_valid_reward") is not False
        reason = first(one.get("exception_type") for one in (raised, object_of(record.get("exception_info"))))
        shared = {
            "group": repr([record.get("source"), record.get("task_name"), name, *sampler]),
            "rollout": repr([record["trial_name"], name]),
            "rewards": dict(rewards) if counts else {},
            "failed": None if counts else str(reason or "no reward"),
            "truncated": str(raised.get("exception_type")) in _LIMITS,
        }
        turns = 0
        for trajectory in _objects(held.get(name)):
            for row in _trajectory(trajectory, shared, where, turns):
                turns += isinstance(row, dict)
                yield row
        if not turns:
            yield shared | ({"untold": UNTOLD} if counts else {})


def _trajectory(
    trajectory: Mapping[str, Any], shared: Mapping[str, Any], where: str, turns: int = 0
) -> Iterator[Row | LeftOut]:
    """The rows of a trajectory, whose rollout has some `turns` before."""
    steps = trajectory.get("steps")
    if not isinstance(steps, list) or not all(map(_is_step, steps)):
        raise UserError(
            f"{where}: `steps` is {brief(steps)}; it must be a list of steps, whose `source` is one of "
            f"{', '.join(_ROLES)}"
        )
    yield from (LeftOut(SUBAGENT) for _ in _objects(trajectory.get("subagent_trajectories")))
    messages, said, unknown = list[Message](), list[tuple[int, Mapping[str, Any]]](), ""
    for step in steps:
        if step["source"] == "agent":
            if (reason := _no_sample(step, unknown or ("" if messages else NO_PROMPT))) is None:
                said.append((len(messages), step))
            else:
                yield LeftOut(reason)
        added = list(_messages(step))
        messages += added
        if any(map(_shows, added)):
            unknown = SHOWN
        elif object_of(object_of(step.get("extra")).get("context_management")).get("boundary") == "replace":
            unknown = unknown or REPLACED
    agent = object_of(trajectory.get("agent"))
    own = {"tools": tools_of(agent.get("tool_definitions"), where)}
    if said and "group" not in shared:
        own["group"] = digest_of(messages[: said[0][0]])
    for turn, (place, step) in enumerate(said, turns):
        sampler = first((step.get("model_name"), agent.get("model_name")))
        ids = _ids(step, "prompt_token_ids")
        shown = len(ids) if isinstance(ids, list) else place * SHORT
        row = {"content": partial(_content, messages, place, step), "shown": shown, "turn": turn, "sampler": sampler}
        yield {**shared, **own, **row}


def _is_step(step: Any) -> bool:
    source = object_of(step).get("source")
    return isinstance(source, str) and source in _ROLES


def _no_sample(step: Mapping[str, Any], unknown: str) -> str | None:
    """Why a step of the agent is no row, None if it is one; `unknown`: why the messages before it are not its prompt,
    empty if they are."""
    if step.get("is_copied_context"):
        return COPIED
    if step.get("llm_call_count") not in (None, 1):
        return NOT_ONE_CALL
    is_exact = unknown != SHOWN and _ids(step, "prompt_token_ids") and _ids(step, "completion_token_ids")
    return None if is_exact else unknown or None


def _content(messages: Sequence[Message], place: int, step: Mapping[str, Any]) -> Row:
    """The prompt and the completion of the step whose message is at a place, as ids as far as it has them."""
    row, prompt, said = message_row(messages, place), _ids(step, "prompt_token_ids"), _ids(step, "completion_token_ids")
    if said is not None:
        row = {"prompt": row["prompt"], "completion_ids": said, "logprobs": _ids(step, "logprobs")}
        if prompt is not None:
            row = {**row, "prompt": None, "prompt_ids": prompt}
    return row


def _ids(step: Mapping[str, Any], name: str) -> Any:
    """A list of the step's metrics; an empty one is none."""
    return object_of(step.get("metrics")).get(name) or None


def _messages(step: Mapping[str, Any]) -> Iterator[Message]:
    """The messages of a step: its own, and what the agent observed, which is a tool's if it names one of its calls."""
    found = {"role": _ROLES[step["source"]], "content": step.get("message")}
    calls = _objects(step.get("tool_calls"))
    if step.get("reasoning_content"):
        found["reasoning_content"] = step["reasoning_content"]
    if calls:
        found["tool_calls"] = [
            {
                "id": call.get("tool_call_id"),
                "type": "function",
                "function": {"name": call.get("function_name"), "arguments": call.get("arguments")},
            }
            for call in calls
        ]
    yield found
    ids = {name for call in calls if isinstance(name := call.get("tool_call_id"), str)}
    for result in _objects(object_of(step.get("observation")).get("results")):
        of, content = result.get("source_call_id"), result.get("content")
        if isinstance(of, str) and of in ids:
            yield {"role": "tool", "tool_call_id": of, "content": content}
        elif content is not None:
            yield {"role": "user", "content": content}


def _shows(message: Message) -> bool:
    """Whether a message has a part that is no text."""
    content = message["content"]
    return isinstance(content, list) and any(object_of(part).get("type") != "text" for part in content)


def _objects(value: Any) -> list[dict[str, Any]]:
    """The objects of a list; none for what is no list."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
