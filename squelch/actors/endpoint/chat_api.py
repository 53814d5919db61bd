"""OpenAI's chat completions: requests to the one form, and answers back. Pure.

The types are those of the package `openai` (`openai.types.chat`), which is not imported: tests check every answer
against them. Beside them, an assistant's message has `reasoning_content`, as DeepSeek's API and open engines have it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from squelch.actors.endpoint.canonical import (
    Begun,
    Message,
    Reading,
    Refused,
    Reply,
    Request,
    ToolUse,
    count_at,
    flag_at,
    malformed,
    model_at,
    objects_at,
    require_open_end,
    stops_at,
    string_at,
    text_at,
    tool_use,
)
from squelch.actors.endpoint.dialect import Dialect, event
from squelch.actors.endpoint.fields import CHAT
from squelch.actors.endpoint.openai_common import error, most_calls_at, token_json
from squelch.kit.untrusted.files import brief

_REASONS = {"stop": "stop", "length": "length", "tool_calls": "tool_calls", "stop_string": "stop"}


def read(body: Mapping[str, Any], reading: Reading) -> tuple[Request, _Writer]:
    """The request in a body. Raises Refused with the field at fault."""
    adjusted, unknown = CHAT.sort(body, reading)
    if body.get("n") not in (None, 1):
        raise malformed(f"n must be 1 (got {brief(body['n'])}): call once for each completion", "n")
    options = body.get("stream_options")
    if not isinstance(options, dict | None):
        raise malformed(f"stream_options must be an object (got {brief(options)})", "stream_options")
    limits = [count_at(body, key) for key in ("max_completion_tokens", "max_tokens")]
    given = objects_at(body, "messages", reading.most_messages)
    log_probs = flag_at(body, "logprobs")
    request = Request(
        require_open_end([_message(one, f"messages[{index}]") for index, one in enumerate(given)]),
        tuple(_tool(one, f"tools[{index}]") for index, one in enumerate(objects_at(body, "tools"))),
        max_tokens=next((limit for limit in limits if limit is not None), None),
        stop=stops_at(body, "stop"),
        most_calls=most_calls_at(body),
        log_probs=log_probs,
        adjusted=adjusted,
        unknown=unknown,
    )
    return request, _Writer(
        model_at(body), flag_at(body, "stream"), flag_at(options or {}, "include_usage"), log_probs, reading.now
    )


def _message(one: Mapping[str, Any], where: str) -> Message:
    role, content = one.get("role"), text_at(one.get("content"), f"{where}.content")
    if role in ("system", "developer"):
        return Message("system", content)
    if role == "user":
        return Message("user", content)
    if role == "tool":
        return Message(
            "tool",
            content,
            call_id=string_at(one, "tool_call_id", where),
            name=string_at(one, "name", where, needed=False),
        )
    if role == "assistant":
        calls = objects_at(one, "tool_calls")
        reasoning = one.get("reasoning_content") or one.get("reasoning")
        return Message(
            "assistant",
            content,
            tuple(_call(call, f"{where}.tool_calls[{index}]") for index, call in enumerate(calls)),
            reasoning if isinstance(reasoning, str) else "",
        )
    raise malformed(
        f"{where}.role must be system, developer, user, assistant or tool (got {brief(role)})", f"{where}.role"
    )


def _call(one: Mapping[str, Any], where: str) -> ToolUse:
    function = one.get("function")
    if not isinstance(function, dict):
        raise malformed(f"{where} must have a function (got a call of type {brief(one.get('type'))})", where)
    name = string_at(function, "name", f"{where}.function")
    return tool_use(string_at(one, "id", where), name, function.get("arguments"), f"{where}.function.arguments")


def _tool(one: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    function = one.get("function")
    if one.get("type") != "function" or not isinstance(function, dict):
        raise malformed(f"{where} must be of type function, with a function (got type {brief(one.get('type'))})", where)
    string_at(function, "name", f"{where}.function")
    return one


# --- answers ---


@dataclass
class _Writer:
    """Writes a `ChatCompletion`, or its `ChatCompletionChunk`s."""

    model: str
    is_stream: bool
    shows_usage: bool
    log_probs: bool
    created: int
    id: str = ""

    def whole(self, reply: Reply) -> dict[str, Any]:
        """As `Writer.whole`."""
        choice = {
            "index": 0,
            "finish_reason": _REASONS[reply.finish],
            "logprobs": self._log_probs(reply),
            "message": _assistant_message(reply),
        }
        return self._frame(reply.id, "chat.completion") | {"choices": [choice], "usage": _usage(reply)}

    def opening(self, begun: Begun) -> bytes:
        """As `Writer.opening`."""
        self.id = begun.id
        return self._chunk({"role": "assistant", "content": ""})

    def pulse(self) -> bytes:
        """As `Writer.pulse`."""
        return self._chunk({})

    def rest(self, reply: Reply) -> bytes:
        """As `Writer.rest`."""
        events = [self._chunk({"reasoning_content": reply.reasoning})] if reply.reasoning else []
        if reply.content or self.log_probs:
            events.append(self._chunk({"content": reply.content}, log_probs=self._log_probs(reply)))
        for index, call in enumerate(reply.calls):
            events.append(self._chunk({"tool_calls": [{"index": index, **_shown(call)}]}))
        events.append(self._chunk({}, _REASONS[reply.finish]))
        if self.shows_usage:
            frame = self._frame(self.id, "chat.completion.chunk")
            events.append(event(json.dumps(frame | {"choices": [], "usage": _usage(reply)})))
        return b"".join([*events, event("[DONE]")])

    def failure(self, refused: Refused) -> bytes:
        """As `Writer.failure`."""
        return event(json.dumps(error(refused)))

    def _frame(self, reply_id: str, kind: str) -> dict[str, Any]:
        return {"id": f"chatcmpl-{reply_id}", "object": kind, "created": self.created, "model": self.model}

    def _chunk(self, delta: dict[str, Any], finish: str | None = None, log_probs: Any = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": log_probs}
        return event(json.dumps(self._frame(self.id, "chat.completion.chunk") | {"choices": [choice]}))

    def _log_probs(self, reply: Reply) -> dict[str, Any] | None:
        if not self.log_probs:
            return None
        return {"content": [token_json(text, nats, None) for text, nats in reply.tokens], "refusal": None}


def _assistant_message(reply: Reply) -> dict[str, Any]:
    said: dict[str, Any] = {"role": "assistant", "content": reply.content or (None if reply.calls else "")}
    said["refusal"] = None
    if reply.reasoning:
        said["reasoning_content"] = reply.reasoning
    if reply.calls:
        said["tool_calls"] = [_shown(call) for call in reply.calls]
    return said


def _shown(call: ToolUse) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _usage(reply: Reply) -> dict[str, int]:
    both = reply.num_fed + reply.num_sampled
    return {"prompt_tokens": reply.num_fed, "completion_tokens": reply.num_sampled, "total_tokens": both}


DIALECT = Dialect("/v1/chat/completions", CHAT, read, error)
