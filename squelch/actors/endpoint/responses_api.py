"""OpenAI's responses: requests to the one form, and answers and events back. Pure.

The types are those of the package `openai` (`openai.types.responses`), which is not imported: tests check every answer
and event against them.

A request has items in place of messages: the reasoning, the text and the calls of a turn are items of their own. Those
that follow each other in this order are one message of the assistant's; a call whose id says that it belongs to an
answer of ours joins that answer's message, wherever it stands. `previous_response_id` and `item_reference` stand for
messages of the trajectory, whose answers `Reading.recall` knows by the ids in the ids of responses and items.

| of a reasoning item comes back | its message has |
|---|---|
| its content | that text |
| its `encrypted_content` alone, which is a token that names our answer | the reasoning of that answer |
| neither | none, which is no rewrite (`conversation`) |

Functions of a namespace are shown to the policy as `namespace__function`, and named back in its calls. Tools that the
client would have the server run are refused, but for those that clients offer unasked (`_UNASKED`): these are dropped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from squelch.actors.endpoint.canonical import (
    Begun,
    Earlier,
    Message,
    Reading,
    Recall,
    Refused,
    Reply,
    Request,
    Role,
    ToolUse,
    count_at,
    flag_at,
    function_tool,
    malformed,
    model_at,
    objects_at,
    require_open_end,
    string_at,
    text_at,
    tool_use,
)
from squelch.actors.endpoint.dialect import Dialect, event
from squelch.actors.endpoint.fields import RESPONSES
from squelch.actors.endpoint.openai_common import error, most_calls_at, token_json
from squelch.kit.untrusted.files import brief

_ID = re.compile(r"(?:resp|rs|msg|fc)_([0-9a-f]{16})(?:_[0-9]+)?")
_CALL = re.compile(r"call_([0-9a-f]{16})_[0-9]+")
_TOKEN = re.compile(r"squelch\.([0-9a-f]{16})")
_TEXT = ("input_text", "output_text", "reasoning_text", "summary_text", "text", "refusal")
_ROLES: dict[str, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_REASONING, _MESSAGE, _CALLS = range(3)
"""The items of a turn, in their order."""
_UNASKED = ("web_search", "image_generation", "tool_search")
"""How the types of tools begin that clients offer unasked."""
_ECHOED = ("instructions", "max_output_tokens", "metadata", "previous_response_id", "prompt_cache_key")
"""Fields of a request that its answer repeats."""
_CODES = {429: "rate_limit_exceeded"}
_CODEX = " (Codex: -m policy; for models that it knows it offers other tools)"


def read(body: Mapping[str, Any], reading: Reading) -> tuple[Request, _Writer]:
    """The request in a body. Raises Refused with the field at fault."""
    adjusted, unknown = RESPONSES.sort(body, reading)
    tools = _Tools.of(body)
    instructions = string_at(body, "instructions", "", needed=False)
    said = [Message("system", instructions)] if instructions else []
    num_instructions = len(said)
    if previous := string_at(body, "previous_response_id", "", needed=False):
        earlier = _recalled(previous, "previous_response_id", reading.recall)
        said += [*earlier.messages, earlier.said]
    given = body.get("input")
    said += [Message("user", given)] if isinstance(given, str) else _Turns(reading.recall).of(body, reading)
    if len(said) > reading.most_messages:
        raise malformed(f"input makes {len(said)} messages, and at most {reading.most_messages} are taken", "input")
    include = body.get("include") or []
    if not isinstance(include, list):
        raise malformed(f"include must be a list (got {brief(include)})", "include")
    log_probs = "message.output_text.logprobs" in include
    request = Request(
        require_open_end(said, "input"),
        tuple(tools.shown),
        max_tokens=count_at(body, "max_output_tokens"),
        most_calls=most_calls_at(body),
        num_instructions=num_instructions,
        log_probs=log_probs,
        adjusted=tuple(sorted({*adjusted, *tools.dropped})),
        unknown=unknown,
    )
    encrypted = "reasoning.encrypted_content" in include
    return request, _Writer(body, flag_at(body, "stream"), tools.names, encrypted, log_probs, reading.now)


def _recalled(given: str, where: str, recall: Recall) -> Earlier:
    """The answer that an id of ours names."""
    found = _ID.fullmatch(given)
    if found is None or (earlier := recall(found[1])) is None:
        raise Refused(
            400,
            "previous_response_not_found",
            f"{where}={brief(given)} is of no answer of this trajectory; send the items themselves, as clients do with "
            "store=false",
            where,
        )
    return earlier


# --- tools ---


@dataclass
class _Tools:
    """`shown`: as the policy sees them; `names`: (namespace, function) by the name there; `dropped`: names for the
    header."""

    shown: list[Mapping[str, Any]] = field(default_factory=list)
    names: dict[str, tuple[str, str]] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> _Tools:
        """Those of a request."""
        found = cls()
        for index, one in enumerate(objects_at(body, "tools")):
            kind, where = one.get("type"), f"tools[{index}]"
            if kind == "namespace":
                name, about = (string_at(one, key, where, needed=key == "name") for key in ("name", "description"))
                for place, function in enumerate(objects_at(one, "tools")):
                    found._add(function, f"{where}.tools[{place}]", name, about)
            elif unasked := next((one for one in _UNASKED if str(kind).startswith(one)), ""):
                found.dropped.add(f"tools.{unasked}")
            else:
                found._add(one, where)
        return found

    def _add(self, one: Mapping[str, Any], where: str, namespace: str = "", about: str = "") -> None:
        name = _function_name(one, where)
        schema = one.get("parameters")
        if not isinstance(schema, dict | None):
            raise malformed(f"{where}.parameters must be an object (got {brief(schema)})", where)
        described = [about, string_at(one, "description", where, needed=False)]
        shown = _flat(namespace, name)
        if self.names.setdefault(shown, (namespace, name)) != (namespace, name):
            raise malformed(f"{where} is shown as {shown}, which another function is, too; rename one", where)
        self.shown.append(
            function_tool(shown, "\n".join(filter(None, described)), schema or {"type": "object", "properties": {}})
        )


def _function_name(one: Mapping[str, Any], where: str) -> str:
    """The name of a function. Raises Refused for any other tool."""
    kind = one.get("type")
    if kind == "function":
        return string_at(one, "name", where)
    named = f"{where} ({brief(one.get('name', kind))})"
    if kind == "custom":
        why = (
            "is a custom tool, whose input follows a grammar, under which the policy's log-probabilities would not be "
            f"those that are trained on; offer functions alone{_CODEX}"
        )
    else:
        why = (
            f"of type {brief(kind)} would be run by the server, which runs nothing; leave it out, or give the policy a "
            "function that the agent runs"
        )
    raise Refused(400, "unsupported_tool", f"{named} {why}", where)


def _flat(namespace: str, name: str) -> str:
    """The name under which the policy knows a function of a namespace."""
    return f"{namespace.rstrip('_')}__{name}" if namespace else name


# --- items ---


@dataclass
class _Turns:
    """Messages of items. `at`: the place of our answers' messages, by their ids; `rank`: the last item of the turn that
    the last message is, -1 if it is none."""

    recall: Recall
    found: list[Message] = field(default_factory=list)
    at: dict[str, int] = field(default_factory=dict)
    rank: int = -1

    def of(self, body: Mapping[str, Any], reading: Reading) -> list[Message]:
        """The messages of a request's input."""
        # a turn has its reasoning and its text as items of their own
        for index, item in enumerate(objects_at(body, "input", 4 * reading.most_messages)):
            where = f"input[{index}]"
            if item.get("type") == "item_reference":
                item = self._referred(item, where)
            self._take(item, where)
        return self.found

    def _referred(self, item: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        named = string_at(item, "id", where)
        earlier = _recalled(named, f"{where}.id", self.recall)
        found = _ID.fullmatch(named)
        assert found is not None, "it was recalled"
        for one in _items(found[1], earlier.said, {}):
            if one["id"] == named:
                return one
        raise malformed(f"{where}.id={brief(named)} is no item of that answer", where)

    def _take(self, item: Mapping[str, Any], where: str) -> None:
        kind = item.get("type", "message")
        if kind == "message":
            role = _ROLES.get(str(item.get("role")))
            if role is None:
                raise malformed(
                    f"{where}.role must be system, developer, user or assistant (got {brief(item.get('role'))})",
                    f"{where}.role",
                )
            content = text_at(item.get("content"), f"{where}.content", _TEXT)
            if role == "assistant":
                self._say(_MESSAGE, Message("assistant", content))
            else:
                self._end(Message(role, content))
        elif kind == "reasoning":
            self._say(_REASONING, Message("assistant", "", reasoning=self._reasoning(item, where)))
        elif kind == "function_call":
            name = _flat(string_at(item, "namespace", where, needed=False), string_at(item, "name", where))
            self._call(tool_use(string_at(item, "call_id", where), name, item.get("arguments"), f"{where}.arguments"))
        elif kind == "function_call_output":
            content = text_at(item.get("output"), f"{where}.output", _TEXT)
            self._end(Message("tool", content, call_id=string_at(item, "call_id", where)))
        else:
            raise Refused(
                400,
                "unsupported_item",
                f"{where} of type {brief(kind)} is not supported; messages, reasoning, and calls and outputs of "
                f"functions are{_CODEX if kind == 'additional_tools' else ''}",
                where,
            )

    def _end(self, message: Message) -> None:
        """Appends a message that is none of a turn."""
        self.found.append(message)
        self.rank = -1

    def _say(self, rank: int, part: Message) -> None:
        """Appends a part to the turn that goes on, or begins another with it."""
        if self.rank < 0 or self.rank > rank or self.rank == rank != _CALLS:
            self.found.append(part)
        else:
            last = self.found[-1]
            self.found[-1] = replace(last, content=last.content + part.content, calls=(*last.calls, *part.calls))
        self.rank = rank

    def _call(self, call: ToolUse) -> None:
        ours = _CALL.fullmatch(call.id)
        place = self.at.get(ours[1]) if ours else None
        if place is not None:
            turn = self.found[place]
            self.found[place] = replace(turn, calls=(*turn.calls, call))
            return
        if self.rank == _CALLS and ours:  # the turn that goes on is another's
            self.rank = -1
        self._say(_CALLS, Message("assistant", "", (call,)))
        if ours:
            self.at[ours[1]] = len(self.found) - 1

    def _reasoning(self, item: Mapping[str, Any], where: str) -> str:
        for key in ("content", "summary"):
            if text := text_at(item.get(key), f"{where}.{key}", _TEXT):
                return text
        if not (token := string_at(item, "encrypted_content", where, needed=False)):
            return ""
        found = _TOKEN.fullmatch(token)
        if found is None or (earlier := self.recall(found[1])) is None:
            place = f"{where}.encrypted_content"
            raise Refused(
                400, "invalid_encrypted_content", f"{place} is of no answer of this trajectory; leave it out", place
            )
        return earlier.said.reasoning


# --- answers ---


def _items(
    reply_id: str,
    said: Message,
    names: Mapping[str, tuple[str, str]],
    encrypted: bool = False,
    status: str = "completed",
    log_probs: list[dict[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """A turn's items (`ResponseOutputItem`)."""
    found: list[dict[str, Any]] = []
    if said.reasoning:
        content = [{"type": "reasoning_text", "text": said.reasoning}]
        item = {"type": "reasoning", "id": f"rs_{reply_id}", "summary": [], "content": content, "status": status}
        found.append(item | ({"encrypted_content": f"squelch.{reply_id}"} if encrypted else {}))
    if said.content or not said.calls:
        part = {"type": "output_text", "text": said.content, "annotations": [], "logprobs": log_probs or []}
        found.append(
            {"type": "message", "id": f"msg_{reply_id}", "role": "assistant", "status": status, "content": [part]}
        )
    for number, call in enumerate(said.calls):
        namespace, name = names.get(call.name, ("", call.name))
        item = {"type": "function_call", "id": f"fc_{reply_id}_{number}", "call_id": call.id, "name": name}
        item |= {"namespace": namespace} if namespace else {}
        found.append(item | {"arguments": call.arguments, "status": status})
    return found


@dataclass
class _Writer:
    """Writes a `Response`, or its `ResponseStreamEvent`s. `body`: the request's."""

    body: Mapping[str, Any]
    is_stream: bool
    names: Mapping[str, tuple[str, str]]
    encrypted: bool
    log_probs: bool
    created: int
    id: str = ""
    num_events: int = 0

    def whole(self, reply: Reply) -> dict[str, Any]:
        """As `Writer.whole`."""
        self.id = reply.id
        is_cut = reply.finish == "length"
        status = "incomplete" if is_cut else "completed"
        said = Message("assistant", reply.content, reply.calls, reply.reasoning)
        log_probs = [token_json(text, nats, []) for text, nats in reply.tokens] if self.log_probs else None
        return self._response(status) | {
            "output": _items(reply.id, said, self.names, self.encrypted, status, log_probs),
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "usage": {
                "input_tokens": reply.num_fed,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": reply.num_sampled,
                "output_tokens_details": {"reasoning_tokens": reply.num_reasoned},
                "total_tokens": reply.num_fed + reply.num_sampled,
            },
        }

    def opening(self, begun: Begun) -> bytes:
        """As `Writer.opening`."""
        self.id = begun.id
        return self._event("response.created", response=self._response("in_progress")) + self.pulse()

    def pulse(self) -> bytes:
        """As `Writer.pulse`."""
        return self._event("response.in_progress", response=self._response("in_progress"))

    def rest(self, reply: Reply) -> bytes:
        """As `Writer.rest`."""
        response = self.whole(reply)
        items = [self._item(index, item) for index, item in enumerate(response["output"])]
        return b"".join(part for item in items for part in item) + self._event(
            f"response.{response['status']}", response=response
        )

    def failure(self, refused: Refused) -> bytes:
        """As `Writer.failure`."""
        code = _CODES.get(refused.status, "invalid_prompt" if refused.status < 500 else "server_error")
        why = {"code": code, "message": refused.message}
        return self._event("response.failed", response=self._response("failed") | {"error": why})

    def _response(self, status: str) -> dict[str, Any]:
        """A `Response` without what was sampled."""
        parallel, choice = self.body.get("parallel_tool_calls"), self.body.get("tool_choice")
        return {
            "id": f"resp_{self.id}",
            "object": "response",
            "created_at": self.created,
            "model": model_at(self.body),
            "status": status,
            "error": None,
            "incomplete_details": None,
            "output": [],
            "parallel_tool_calls": parallel is not False,
            "tool_choice": "none" if choice == "none" else "auto",
            "tools": self.body.get("tools") or [],
            **{key: self.body.get(key) for key in _ECHOED},
        }

    def _item(self, index: int, item: dict[str, Any]) -> Iterator[bytes]:
        """The events of one item."""
        empty = {"function_call": {"arguments": ""}, "message": {"content": []}, "reasoning": {"content": []}}
        begun = item | empty[item["type"]] | {"status": "in_progress"}
        yield self._event("response.output_item.added", output_index=index, item=begun)
        where = {"output_index": index, "item_id": item["id"]}
        if item["type"] == "function_call":
            yield self._event("response.function_call_arguments.delta", **where, delta=item["arguments"])
            yield self._event("response.function_call_arguments.done", **where, arguments=item["arguments"])
        else:
            (part,) = item["content"]
            place, kind = {**where, "content_index": 0}, f"response.{part['type']}"
            more = {"logprobs": part["logprobs"]} if "logprobs" in part else {}
            yield self._event("response.content_part.added", **place, part=part | {"text": ""})
            yield self._event(f"{kind}.delta", **place, delta=part["text"], **more)
            yield self._event(f"{kind}.done", **place, text=part["text"], **more)
            yield self._event("response.content_part.done", **place, part=part)
        yield self._event("response.output_item.done", output_index=index, item=item)

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = json.dumps({"type": kind, "sequence_number": self.num_events, **fields})
        self.num_events += 1
        return event(data, kind)


DIALECT = Dialect("/v1/responses", RESPONSES, read, error, repeats_cut=True)
