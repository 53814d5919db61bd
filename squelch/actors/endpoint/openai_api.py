"""OpenAI's chat completions: requests to the one form, and answers and errors back. Pure.

The types are those of the package `openai` (`openai.types.chat`), which is not imported: tests check every answer
against them. Beside them, an assistant's message has `reasoning_content`, as DeepSeek's API and open engines have it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from squelch.actors.endpoint.canonical import (
    Message,
    Refused,
    Reply,
    Request,
    ToolUse,
    count_at,
    flag_at,
    malformed,
    objects_at,
    require_open_end,
    stops_at,
    string_at,
    text_at,
    tool_use,
)
from squelch.actors.endpoint.fields import OPENAI
from squelch.kit.untrusted.files import brief

PATH = "/v1/chat/completions"
MODEL = "policy"
"""The one model's name in `/v1/models`; a request may give any."""
_REASONS = {"stop": "stop", "length": "length", "tool_calls": "tool_calls", "stop_string": "stop"}
_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


def request(body: Mapping[str, Any], most_messages: int, temperature: float, may_override: bool) -> Request:
    """The request in a body. Raises Refused with the field at fault."""
    adjusted, unknown = OPENAI.sort(body, temperature, may_override)
    if body.get("n") not in (None, 1):
        raise malformed(f"n must be 1 (got {brief(body['n'])}): call once for each completion", "n")
    options = body.get("stream_options")
    if not isinstance(options, dict | None):
        raise malformed(f"stream_options must be an object (got {brief(options)})", "stream_options")
    limits = [count_at(body, key) for key in ("max_completion_tokens", "max_tokens")]
    messages = [_message(one, f"messages[{k}]") for k, one in enumerate(objects_at(body, "messages", most_messages))]
    return Request(
        require_open_end(messages),
        tuple(_tool(one, f"tools[{index}]") for index, one in enumerate(objects_at(body, "tools"))),
        max_tokens=next((limit for limit in limits if limit is not None), None),
        stop=stops_at(body, "stop"),
        model=string_at(body, "model", "", needed=False)[:256] or MODEL,
        stream=flag_at(body, "stream"),
        stream_usage=flag_at(options or {}, "include_usage"),
        log_probs=flag_at(body, "logprobs"),
        adjusted=adjusted,
        unknown=unknown,
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


def answer(reply: Reply, request: Request, created: int) -> dict[str, Any]:
    """A `ChatCompletion`."""
    return {
        "id": f"chatcmpl-{reply.id}",
        "object": "chat.completion",
        "created": created,
        "model": request.model,
        "choices": [
            {
                "index": 0,
                "finish_reason": _REASONS[reply.finish],
                "logprobs": _log_probs(reply, request),
                "message": _assistant_message(reply),
            }
        ],
        "usage": _usage(reply),
    }


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


def _log_probs(reply: Reply, request: Request) -> dict[str, Any] | None:
    if not request.log_probs:
        return None
    return {"content": [_token(text, nats) for text, nats in reply.tokens], "refusal": None}


def _token(text: str, nats: float) -> dict[str, Any]:
    whole = "�" not in text  # a token may end inside of a character
    return {"token": text, "logprob": nats, "bytes": list(text.encode()) if whole else None, "top_logprobs": []}


def _usage(reply: Reply) -> dict[str, int]:
    both = reply.num_fed + reply.num_sampled
    return {"prompt_tokens": reply.num_fed, "completion_tokens": reply.num_sampled, "total_tokens": both}


def events(reply: Reply, request: Request, created: int) -> Iterator[bytes]:
    """The answer as server-sent events, `ChatCompletionChunk`s."""
    common = {
        "id": f"chatcmpl-{reply.id}",
        "object": "chat.completion.chunk",
        "created": created,
        "model": request.model,
    }

    def chunk(delta: dict[str, Any], finish: str | None = None, log_probs: Any = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": log_probs}
        return _event(common | {"choices": [choice]})

    yield chunk({"role": "assistant", "content": ""})
    if reply.reasoning:
        yield chunk({"reasoning_content": reply.reasoning})
    if reply.content or request.log_probs:
        yield chunk({"content": reply.content}, log_probs=_log_probs(reply, request))
    for index, call in enumerate(reply.calls):
        yield chunk({"tool_calls": [{"index": index, **_shown(call)}]})
    yield chunk({}, _REASONS[reply.finish])
    if request.stream_usage:
        yield _event(common | {"choices": [], "usage": _usage(reply)})
    yield b"data: [DONE]\n\n"


def _event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def error(refused: Refused) -> dict[str, Any]:
    """An error as OpenAI's API has it."""
    kind = _TYPES.get(refused.status, "invalid_request_error" if refused.status < 500 else "server_error")
    return {"error": {"message": refused.message, "type": kind, "param": refused.param, "code": refused.code}}


def models() -> dict[str, Any]:
    """The answer of `/v1/models`."""
    return {"object": "list", "data": [model()]}


def model() -> dict[str, Any]:
    """The answer of `/v1/models/NAME`."""
    return {"id": MODEL, "object": "model", "created": 0, "owned_by": "squelch"}
