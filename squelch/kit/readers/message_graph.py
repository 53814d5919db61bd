"""The records of verifiers and prime-rl, as rows: episodes, whose traces are graphs of messages. Pure.

    episode ─▶ traces, one for each agent ─▶ nodes: a message, its parent, and the tokens that it adds

A node that the model sampled is one row. Its prompt is the path from the root to its parent, and, where nodes hold
token ids, the scaffold that its own ids begin with (`MessageNode` in verifiers' `graph.py`: a path's ids, one node
after another, are exactly what the model read and said). Paths that share a beginning share its nodes, so every sampled
message is one row however often its conversation was rewritten afterwards.

A trace, or a whole episode, that is not `ok` failed; its messages are no samples.

The step is the version of the policy that began the episode, where the trainer stamps it (`run.work.policy.start`), and
else the step at which the episode was dispatched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from squelch.kit.base.errors import UserError
from squelch.kit.base.values import first, object_of
from squelch.kit.readers.format_rows import UNKNOWN, LeftOut, Row, as_float, digest_of, ended_by, is_number, span_of
from squelch.kit.readers.records import Record

EVALUATION = "an evaluation within a training run"
NOT_TRAINED = "said by an agent that is not trained"
LIMITS = ("max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens", "compaction_failed")
"""Conditions under which a trace stopped at a limit."""
SHORT = 64
"""Ids of a short message with what the template writes around it: more than a message costs to be rendered."""
OF_TOKENS = {"logprobs": "logprobs", "advantage": "advantages"}
"""Keys of a row, and the names of a node's lists with a value for each sampled token."""


def episode(record: Record, where: str) -> Iterator[Row | LeftOut]:
    """The rows of an episode, or of a trace alone."""
    traces = record.get("traces", [record] if "nodes" in record else None)
    if not isinstance(traces, list) or not all(isinstance(one, dict) for one in traces):
        raise UserError(f"{where}: `traces` must be a list of traces, as verifiers writes them")
    run = object_of(record.get("run"))
    work = object_of(run.get("work"))
    if run.get("type") == "train" and work.get("type") == "eval":
        yield {"evaluation": EVALUATION, "group": _group(record), "task": _task(record)}
        return
    if not traces:
        yield LeftOut("an episode without traces")
    policy = object_of(work.get("policy"))
    shared = {
        "step": first((policy.get("start"), work.get("step"))),
        "versions": span_of([policy.get("start"), policy.get("end")]),
        "group": _group(record),
        "task": _task(record),
        "run": run.get("id"),
    }
    whole = "" if any(trace.get("ok") is False for trace in traces) else _failure(record)
    for number, trace in enumerate(traces, 1):
        if object_of(trace.get("agent")).get("trainable") is False:
            yield LeftOut(NOT_TRAINED)
            continue
        rollout = first((trace.get("id"), f"{where}, trace {number}"))
        of_trace = {**shared, "rollout": rollout, "truncated": _truncated(trace)}
        if failed := whole or _failure(trace):
            yield {**of_trace, "failed": failed}
        else:
            yield from _trace(trace, of_trace, where)


def _failure(part: Mapping[str, Any]) -> str:
    """Why a trace, or an episode whose traces are well, failed, by its last error; empty if it did not, or does not
    say."""
    if part.get("ok") is not False:
        return ""
    errors = part.get("errors")
    kind = object_of(errors[-1]).get("type") if isinstance(errors, list) and errors else part.get("stop_condition")
    return f"failed with {kind}" if isinstance(kind, str) else "failed"


def _truncated(trace: Mapping[str, Any]) -> bool | None:
    """As `Trace.is_truncated` in verifiers; None if the trace says nothing of its end."""
    condition, last = trace.get("stop_condition"), _calls(trace)[-1:]
    if condition is None and not last:
        return None
    return condition in LIMITS or any(call.get("finish_reason") == "length" for call in last)


def _calls(trace: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The calls of the model that did not fail."""
    calls = trace.get("calls")
    return [call for call in map(object_of, calls if isinstance(calls, list) else ()) if call.get("error") is None]


def _group(record: Record) -> Any:
    """The episode's group, or else its task: they have the same prompt."""
    return first((object_of(record.get("group")).get("id"), _task(record)))


def _task(record: Mapping[str, Any]) -> Any:
    """What tells the episode's task from others."""
    task = object_of(record.get("task"))
    return first((task.get("key"), task.get("hash")))


def _trace(trace: Mapping[str, Any], shared: Mapping[str, Any], where: str) -> Iterator[Row | LeftOut]:
    nodes = trace.get("nodes")
    if not isinstance(nodes, list) or not all(map(_is_node, nodes)):
        raise UserError(f"{where}: `nodes` must be a list of nodes with a `message` each, as verifiers writes them")
    rewards = {name: _reward(value) for name, value in object_of(trace.get("rewards")).items()}
    before = _sampled_before(nodes, where)
    said = [index for index, node in enumerate(nodes) if node.get("sampled")]
    if not said:
        yield LeftOut("nothing was sampled")
        return
    contents, shown = _Contents(nodes), _ids_to(nodes)
    if shared["group"] is None:
        shared = {**shared, "group": digest_of(contents.prompt(said[0]))}
    learned: dict[str, Any] = {"learned": partial(_learned, nodes)}
    ended = {str(one.get("node")): ended_by(one.get("finish_reason")) for one in _calls(trace)}
    for index in said:
        row = {"content": partial(contents.of, index), "shown": shown[index], "turn": before[index]}
        yield {**row, **shared, "rewards": rewards, "ended": ended.get(str(index)), **learned}
        learned = {}


def _learned(nodes: Sequence[Mapping[str, Any]]) -> Row:
    """What a trace says of its tokens: those of its nodes one after another. Of a node the policy sampled as many as
    have a log-probability, and none of a message that it did not say."""
    ids, mask, sampled, drawn = list[int](), list[bool](), list[bool](), list[float | None]()
    said = list[tuple[int, int, str]]()
    for node in nodes:
        own = [bool(one) for one in node.get("mask") or []]
        logprobs, content = node.get("logprobs"), object_of(node.get("message")).get("content")
        known = len(logprobs) if isinstance(logprobs, list) else sum(own) if node.get("sampled") else 0
        if node.get("sampled") and any(own) and isinstance(content, str):
            said.append((len(ids), len(ids) + len(own), content))
        ids += node.get("token_ids") or []
        mask += own
        sampled += [one and (known := known - 1) >= 0 for one in own]
        drawn += _spread(logprobs, own) or [None] * len(own)
    if len(ids) != len(mask):
        return UNKNOWN
    first_said = next((at for at, node in enumerate(nodes) if node.get("sampled")), 0)
    found = UNKNOWN | {"ids": ids, "mask": mask, "sampled": sampled, "logprobs": drawn, "said": said}
    if any(node.get("parent") != (at - 1 if at else None) for at, node in enumerate(nodes[: first_said + 1])):
        return found
    tools = [nested_tool(tool) for tool in nodes[0].get("tools") or []]
    messages = [_message(node["message"]) for node in nodes[:first_said]]
    return found | {"messages": messages, "tools": tools or None, "start": mask.index(True) if any(mask) else 0}


def _is_node(node: Any) -> bool:
    lists = ("token_ids", "mask", "tools")
    return isinstance(object_of(node).get("message"), dict) and all(
        isinstance(node.get(one) or [], list) for one in lists
    )


def _reward(value: Any) -> float | None:
    """The value of a `Reward`; None if scoring did not run."""
    score, weight = object_of(value).get("score"), object_of(value).get("weight", 1.0)
    return as_float(score) * as_float(weight) if is_number(score) and is_number(weight) else None


def _sampled_before(nodes: Sequence[Mapping[str, Any]], where: str) -> list[int]:
    """Of each node, how many on its path before it were sampled. UserError if the nodes are no graph."""
    found = list[int]()
    for at, node in enumerate(nodes):
        parent, ids, mask = node.get("parent"), node.get("token_ids") or [], node.get("mask") or []
        if parent is not None and (not isinstance(parent, int) or not 0 <= parent < at):
            raise UserError(f"{where}: node {at} has the parent {str(parent)[:20]}; it must be an earlier node, from 0")
        if node.get("sampled") and len(ids) != len(mask):
            raise UserError(
                f"{where}: a node has {len(ids)} `token_ids` and {len(mask)} entries in `mask`; they must agree"
            )
        found.append(0 if parent is None else found[parent] + bool(nodes[parent].get("sampled")))
    return found


def _ids_to(nodes: Sequence[Mapping[str, Any]]) -> list[int]:
    """Of each node, how many ids the path to it has, about: of a message without ids, as many as of a short one."""
    found = list[int]()
    for node in nodes:
        parent = node.get("parent")
        found.append(len(node.get("token_ids") or range(SHORT)) + (0 if parent is None else found[parent]))
    return found


def _spread(values: Any, mask: Sequence[Any]) -> list[Any] | None:
    """The values of the sampled tokens, each at its token, None elsewhere; None if they are not one for each."""
    if not isinstance(values, list) or len(values) != sum(map(bool, mask)):
        return None
    rest = iter(values)
    return [next(rest) if sampled else None for sampled in mask]


class _Contents:
    """The prompts and completions of a trace's nodes. A message is converted once, however many prompts show it."""

    def __init__(self, nodes: Sequence[Mapping[str, Any]]) -> None:
        self._nodes = nodes
        self._messages: dict[int, dict[str, Any]] = {}

    def of(self, index: int) -> Row:
        """The prompt and the completion of a sampled node, as ids if every node of its path has them."""
        path = self._path(index)
        ids, mask = self._nodes[index].get("token_ids") or [], self._nodes[index].get("mask") or []
        if not any(mask) or not all(self._nodes[one].get("token_ids") for one in path):
            tools = [nested_tool(tool) for tool in self._nodes[path[0]].get("tools") or []]
            said = [self._message(one) for one in path]
            return {"prompt": said[:-1], "completion": said[-1:], "tools": tools or None}
        start = next(i for i, sampled in enumerate(mask) if sampled)
        end = len(mask) - next(i for i, sampled in enumerate(reversed(mask)) if sampled)
        before = [token for one in path[:-1] for token in self._nodes[one]["token_ids"]]
        of_tokens = {key: _spread(self._nodes[index].get(name), mask[start:end]) for key, name in OF_TOKENS.items()}
        return {"prompt_ids": [*before, *ids[:start]], "completion_ids": list(ids[start:end]), **of_tokens}

    def prompt(self, index: int) -> Any:
        """The prompt of a sampled node."""
        found = self.of(index)
        return found.get("prompt_ids", found.get("prompt"))

    def _path(self, index: int) -> list[int]:
        """The nodes from the root to a node."""
        path, parent = [index], self._nodes[index].get("parent")
        while parent is not None:
            path.append(parent)
            parent = self._nodes[parent].get("parent")
        return path[::-1]

    def _message(self, index: int) -> dict[str, Any]:
        if index not in self._messages:
            self._messages[index] = _message(self._nodes[index]["message"])
        return self._messages[index]


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message without what it lacks, its tool calls nested as OpenAI nests them."""
    found = {key: value for key, value in message.items() if value is not None and key != "provider_state"}
    content = found.get("content")
    if isinstance(content, list) and not any(object_of(part).get("type") == "image_url" for part in content):
        parts = [object_of(part).get("text") for part in content]
        found["content"] = "\n".join(text for text in parts if isinstance(text, str))
    if isinstance(found.get("tool_calls"), list):
        found["tool_calls"] = [_nested_call(call) for call in found["tool_calls"]]
    return found


def _nested_call(call: Any) -> Any:
    if not isinstance(call, dict) or "function" in call:
        return call
    function = {key: call[key] for key in ("name", "arguments") if key in call}
    return {"id": call.get("id"), "type": "function", "function": function}


def nested_tool(tool: Any) -> Any:
    """The schema of a tool as OpenAI nests it."""
    if not isinstance(tool, dict) or "function" in tool:
        return tool
    function = {key: tool[key] for key in ("name", "description", "parameters", "strict") if tool.get(key) is not None}
    return {"type": "function", "function": function}
