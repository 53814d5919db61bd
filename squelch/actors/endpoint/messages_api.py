"""Anthropic's messages: requests to the one form, and answers and errors back. Pure.

The types are those of the package `anthropic` (`anthropic.types`), which is not imported: tests check every answer
against them. A `tool_result` becomes a message of a tool, in the place where it stands. The reasoning is a `thinking`
block, for requests that ask for thinking.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from squelch.actors.endpoint.canonical import (
    Begun,
    Message,
    Reading,
    Refused,
    Reply,
    Request,
    count_at,
    flag_at,
    function_tool,
    malformed,
    model_at,
    objects_at,
    part_text,
    require_open_end,
    stops_at,
    string_at,
    text_at,
    tool_use,
    unsupported,
)
from squelch.actors.endpoint.dialect import Dialect, event
from squelch.actors.endpoint.fields import MESSAGES
from squelch.kit.untrusted.files import brief

_NO_THREADS = "thread_unsupported_request"
"""The code of the refusal upon which the package's tool runner sends whole conversations."""
_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "stop_string": "stop_sequence"}
_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def read(body: Mapping[str, Any], reading: Reading) -> tuple[Request, _Writer]:
    """The request in a body. Raises Refused with the field at fault."""
    if body.get("thread") is not None:
        raise Refused(400, _NO_THREADS, "thread is not supported: send the whole conversation with each call", "thread")
    adjusted, unknown = MESSAGES.sort(body, reading)
    said = [Message("system", text_at(body["system"], "system"))] if body.get("system") else []
    messages = objects_at(body, "messages", reading.most_messages)
    for index, one in enumerate(messages):
        said += _messages(one, f"messages[{index}]")
    if any(one.get("output_config") for one in messages):
        adjusted = tuple(sorted({*adjusted, "messages.output_config"}))
    thinking, choice = _object_at(body, "thinking"), _object_at(body, "tool_choice")
    one_call = flag_at(choice, "disable_parallel_tool_use")
    request = Request(
        require_open_end(said),
        tuple(_tool(one, f"tools[{index}]") for index, one in enumerate(objects_at(body, "tools"))),
        max_tokens=count_at(body, "max_tokens"),
        stop=stops_at(body, "stop_sequences"),
        most_calls=0 if choice.get("type") == "none" else 1 if one_call else None,
        adjusted=adjusted,
        unknown=unknown,
    )
    shows_reasoning = thinking.get("type") in ("enabled", "adaptive")
    return request, _Writer(model_at(body), flag_at(body, "stream"), shows_reasoning)


def _object_at(body: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = body.get(key)
    if not isinstance(value, dict | None):
        raise malformed(f"{key} must be an object (got {brief(value)})", key)
    return value or {}


def _messages(one: Mapping[str, Any], where: str) -> list[Message]:
    """A message as one or several: results of tools are messages of their own."""
    role, content = one.get("role"), one.get("content")
    if role == "assistant":
        return [_assistants(content, f"{where}.content")]
    if role == "system":
        text = text_at(content, f"{where}.content")
        return [Message("system", text)] if text else []  # Claude Code's holds the effort of the next turn alone
    if role != "user":
        raise malformed(f"{where}.role must be user or assistant (got {brief(role)})", f"{where}.role")
    if not isinstance(content, list):
        return [Message("user", text_at(content, f"{where}.content"))]
    found: list[Message] = []
    numbered = [(index, block) for index, block in enumerate(content)]
    for is_result, group in groupby(numbered, lambda pair: _kind(pair[1]) == "tool_result"):
        places = [(block, f"{where}.content[{index}]") for index, block in group]
        if is_result:
            found += [_result(block, place) for block, place in places]
        else:
            found.append(Message("user", "\n".join(part_text(block, place) for block, place in places)))
    return found or [Message("user", "")]


def _kind(block: Any) -> Any:
    return block.get("type") if isinstance(block, dict) else None


def _result(block: Mapping[str, Any], where: str) -> Message:
    call_id = string_at(block, "tool_use_id", where)
    return Message("tool", text_at(block.get("content"), f"{where}.content"), call_id=call_id)


def _assistants(content: Any, where: str) -> Message:
    if not isinstance(content, list):
        return Message("assistant", text_at(content, where))
    texts, calls, thoughts = [], [], []
    for index, block in enumerate(content):
        kind, place = _kind(block), f"{where}[{index}]"
        if kind == "tool_use":
            name = string_at(block, "name", place)
            calls.append(tool_use(string_at(block, "id", place), name, block.get("input"), f"{place}.input"))
        elif kind == "thinking":
            thoughts.append(string_at(block, "thinking", place, needed=False))
        elif kind == "text":
            texts.append(part_text(block, place))
        else:
            raise unsupported(kind, place)
    return Message("assistant", "\n".join(texts), tuple(calls), "\n".join(thoughts))


def _tool(one: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    if one.get("type") not in (None, "custom"):
        raise Refused(
            400,
            "unsupported_tool",
            f"{where} of type {brief(one['type'])} would be run by the server, which runs nothing; leave it out "
            "(Claude Code: --disallowedTools WebSearch), or give the policy a tool that the agent runs",
            where,
        )
    schema = one.get("input_schema")
    if not isinstance(schema, dict):
        raise malformed(f"{where}.input_schema must be an object (got {brief(schema)})", where)
    description = string_at(one, "description", where) if one.get("description") else ""
    return function_tool(string_at(one, "name", where), description, schema)


# --- answers ---


@dataclass
class _Writer:
    """Writes a `Message`, or its `RawMessageStreamEvent`s."""

    model: str
    is_stream: bool
    shows_reasoning: bool

    def whole(self, reply: Reply) -> dict[str, Any]:
        """As `Writer.whole`."""
        usage = {"input_tokens": reply.num_fed, "output_tokens": reply.num_sampled}
        return {**self._frame(reply), **_end(reply), "content": self._blocks(reply), "usage": usage}

    def opening(self, begun: Begun) -> bytes:
        """As `Writer.opening`."""
        nothing = {"content": [], "stop_reason": None, "stop_sequence": None}
        usage = {"input_tokens": begun.num_fed, "output_tokens": 0}
        return _event("message_start", message={**self._frame(begun), **nothing, "usage": usage})

    def pulse(self) -> bytes:
        """As `Writer.pulse`."""
        return _event("ping")

    def rest(self, reply: Reply) -> bytes:
        """As `Writer.rest`."""
        return b"".join(self._rest(reply))

    def failure(self, refused: Refused) -> bytes:
        """As `Writer.failure`."""
        return event(json.dumps(error(refused)), "error")

    def _frame(self, begun: Begun) -> dict[str, Any]:
        return {"id": f"msg_{begun.id}", "type": "message", "role": "assistant", "model": self.model}

    def _rest(self, reply: Reply) -> Iterator[bytes]:
        for index, block in enumerate(self._blocks(reply)):
            empty, deltas = _emptied(block)
            yield _event("content_block_start", index=index, content_block=empty)
            for delta in deltas:
                yield _event("content_block_delta", index=index, delta=delta)
            yield _event("content_block_stop", index=index)
        yield _event("message_delta", delta=_end(reply), usage={"output_tokens": reply.num_sampled})
        yield _event("message_stop")

    def _blocks(self, reply: Reply) -> list[dict[str, Any]]:
        blocks: list[dict[str, Any]] = []
        if reply.reasoning and self.shows_reasoning:
            blocks.append({"type": "thinking", "thinking": reply.reasoning, "signature": ""})
        if reply.content:
            blocks.append({"type": "text", "text": reply.content, "citations": None})
        for call in reply.calls:
            blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)})
        return blocks


def _end(reply: Reply) -> dict[str, Any]:
    return {"stop_reason": _REASONS[reply.finish], "stop_sequence": reply.stop or None}


def _emptied(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block without what it says, and the deltas that say it."""
    if block["type"] == "text":
        return block | {"text": ""}, [{"type": "text_delta", "text": block["text"]}]
    if block["type"] == "thinking":
        said = {"type": "thinking_delta", "thinking": block["thinking"]}
        return block | {"thinking": ""}, [said, {"type": "signature_delta", "signature": block["signature"]}]
    return block | {"input": {}}, [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]


def _event(kind: str, **fields: Any) -> bytes:
    return event(json.dumps({"type": kind, **fields}), kind)


def error(refused: Refused) -> dict[str, Any]:
    """An error as Anthropic's API has it."""
    kind = _TYPES.get(refused.status, "invalid_request_error" if refused.status < 500 else "api_error")
    found: dict[str, Any] = {"type": kind, "message": refused.message}
    if refused.code == _NO_THREADS:
        found["details"] = {"error_code": refused.code, "unsupported": [refused.param]}
    return {"type": "error", "error": found}


def _count(num_fed: int) -> dict[str, Any]:
    """A `MessageTokensCount`."""
    return {"input_tokens": num_fed}


DIALECT = Dialect("/v1/messages", MESSAGES, read, error, count_path="/v1/messages/count_tokens", count=_count)
