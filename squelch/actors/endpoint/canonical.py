"""The one form to which every dialect brings requests, and from which it writes answers and errors. Pure.

A dialect (`dialect`) knows this form alone, and no other dialect. What is sampled for a request depends on its
`Request` alone, so the same conversation has the same ids in each of them.

Invariants:

- A request is read completely or refused by name: `Refused` says which field is wrong and what would be right.
- Contents are text. Null and missing content are the empty text; the text parts of a content are joined by newlines.
- Calls of tools are compared by id, name and the value of their arguments, whatever the order of its keys and the
  spelling of its numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from squelch.kit.untrusted.files import brief

Role = Literal["system", "user", "assistant", "tool"]


class Refused(Exception):
    """A request that gets no completion: an HTTP status, a code for programs and a text for people."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None, retry: bool = False) -> None:
        self.status, self.code, self.message, self.param = status, code, message, param
        self.retry = retry
        """Whether the same request may succeed later."""
        super().__init__(message)


def malformed(message: str, param: str | None = None) -> Refused:
    """A request whose fields are wrong."""
    return Refused(400, "invalid_request", message, param)


def ended() -> Refused:
    """A request for a trajectory that has ended."""
    return Refused(410, "trajectory_ended", "the trajectory of this token has ended; nothing is sampled for it")


@dataclass(frozen=True)
class ToolUse:
    """A call of a tool in an assistant's message. `arguments`: JSON of an object, as it was given; two calls are equal
    if their `key` is, the same with its keys sorted."""

    id: str
    name: str
    arguments: str = field(compare=False)
    key: str


@dataclass(frozen=True)
class Message:
    """One message. `reasoning`: as the client sent it, empty if it did not."""

    role: Role
    content: str
    calls: tuple[ToolUse, ...] = ()
    reasoning: str = ""
    call_id: str = ""
    """Of a tool's result: the call that it answers."""
    name: str = ""
    """Of a tool's result: the tool, if the client says so."""


@dataclass(frozen=True)
class Request:
    """A request for one completion."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    """As of `formats.protocol.Tools`."""
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    most_calls: int | None = None
    """Most calls of tools that the answer may hold."""
    num_instructions: int = 0
    """Number of leading messages that hold for this request alone, and not for one that continues from its answer."""
    log_probs: bool = False
    """Whether the answer needs the text of each token."""
    adjusted: tuple[str, ...] = ()
    """Fields that are taken otherwise than asked."""
    unknown: tuple[str, ...] = ()
    """Fields that are not known."""

    @cached_property
    def tools_key(self) -> str:
        """Equal for equal tools."""
        return canonical(list(self.tools)) if self.tools else ""

    @property
    def may_call(self) -> bool:
        """Whether the policy was offered a tool; else a call that it writes is text."""
        return bool(self.tools) and self.most_calls != 0


@dataclass(frozen=True)
class Begun:
    """A turn that is about to be sampled."""

    id: str
    """Distinguishes it from the trajectory's others: 16 hexadecimal digits."""
    num_fed: int


@dataclass(frozen=True)
class Reply(Begun):
    """A sampled turn as a client sees it."""

    content: str
    calls: tuple[ToolUse, ...]
    reasoning: str
    finish: Literal["stop", "length", "tool_calls", "stop_string"]
    stop: str
    """The stop string that ended the turn; empty if none did."""
    num_sampled: int
    num_reasoned: int
    """Those of the sampled tokens that are reasoning."""
    tokens: tuple[tuple[str, float], ...] = field(default=(), repr=False)
    """Text and log-probability (nats) of each sampled token, if they were asked for."""


@dataclass(frozen=True)
class Earlier:
    """An earlier answer of the trajectory. `messages`: those that it answers, without instructions of its request."""

    messages: tuple[Message, ...]
    said: Message


Recall = Callable[[str], Earlier | None]
"""The answer with an id (`Begun.id`); None if the trajectory has none."""


@dataclass(frozen=True)
class Reading:
    """How the requests of a trajectory are read."""

    most_messages: int
    most_tokens: int
    """Most sampled tokens of one call; a limit above it is lowered."""
    temperature: float = 1.0
    """That of the run's sampling."""
    may_override: bool = True
    """Whether fields that ask for other sampling are overridden, and not refused."""
    recall: Recall = lambda reply_id: None
    now: int = 0
    """Seconds since 1970, which an answer may name as its time."""


# --- reading ---

MODEL = "policy"
"""The one model's name in `/v1/models`; a request may give any."""


def model_at(body: Mapping[str, Any]) -> str:
    """The name of the model in a request, which its answer repeats."""
    return string_at(body, "model", "", needed=False)[:256] or MODEL


def function_tool(name: str, description: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool as of `formats.protocol.Tools`."""
    described = {"description": description} if description else {}
    return {"type": "function", "function": {"name": name, **described, "parameters": parameters}}


def canonical(value: Any) -> str:
    """JSON of a value with sorted keys and one text for equal numbers: JavaScript sends 1.0 back as 1."""
    same = json.loads(json.dumps(value), parse_float=_number)
    return json.dumps(same, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _number(text: str) -> float | int:
    found = float(text)
    return int(found) if found.is_integer() else found


def tool_use(call_id: str, name: str, arguments: Any, where: str) -> ToolUse:
    """A call whose arguments are given as an object or as its JSON; the empty text is an empty object."""
    try:
        found = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
        if isinstance(found, dict):
            text = arguments if isinstance(arguments, str) and arguments else json.dumps(found, ensure_ascii=False)
            key = canonical(found)
            key.encode()  # a lone surrogate, which the text of JSON in JSON can spell, is a ValueError
            return ToolUse(call_id, name, text, key)
    except (ValueError, RecursionError):
        pass
    raise malformed(f"{where} must be a JSON object (got {brief(arguments)})", where)


TEXT = ("text", "refusal")
"""The types of parts that are text."""


def text_at(value: Any, where: str, kinds: Sequence[str] = TEXT) -> str:
    """A content: text, parts of text, or null. Refuses any other kind of part by its name."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise malformed(f"{where} must be text or a list of parts (got {brief(value)})", where)
    return "\n".join(part_text(part, f"{where}[{index}]", kinds) for index, part in enumerate(value))


def part_text(part: Any, where: str, kinds: Sequence[str] = TEXT) -> str:
    """The text of a part of a content; refuses a part that is none."""
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get("refusal" if kind == "refusal" else "text") if kind in kinds else None
    if isinstance(text, str):
        return text
    raise unsupported(kind, where)


def unsupported(kind: Any, where: str) -> Refused:
    """The refusal of a part of a content that is no text."""
    what = "images are" if "image" in str(kind) else f"a part of type {brief(kind)} is"
    return Refused(400, "unsupported_content", f"{where}: {what} not supported; the policy reads text alone", where)


def string_at(of: Mapping[str, Any], key: str, where: str, needed: bool = True) -> str:
    """A text field; empty if it is missing and not `needed`."""
    value = of.get(key)
    if value is None and not needed:
        return ""
    if not isinstance(value, str) or (needed and not value):
        raise malformed(f"{where}.{key} must be text (got {brief(value)})".removeprefix("."), key)
    return value


def flag_at(of: Mapping[str, Any], key: str) -> bool:
    """A truth value; false if it is missing."""
    value = of.get(key)
    if not isinstance(value, bool | None):
        raise malformed(f"{key} must be true or false (got {brief(value)})", key)
    return bool(value)


def count_at(of: Mapping[str, Any], key: str) -> int | None:
    """A whole number of at least 1; None if it is missing."""
    value = of.get(key)
    if value is not None and (type(value) is not int or value < 1):
        raise malformed(f"{key} must be a whole number of at least 1 (got {brief(value)})", key)
    return value


MAX_STOPS, MAX_STOP_CHARACTERS = 16, 256


def stops_at(of: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Stop strings: one text, or a list of them."""
    value = of.get(key)
    found = [] if value is None else [value] if isinstance(value, str) else value
    fits = isinstance(found, list) and len(found) <= MAX_STOPS
    if not fits or not all(isinstance(one, str) and 0 < len(one) <= MAX_STOP_CHARACTERS for one in found):
        raise malformed(
            f"{key} must be at most {MAX_STOPS} texts of 1 to {MAX_STOP_CHARACTERS} characters (got {brief(value)})",
            key,
        )
    return tuple(dict.fromkeys(found))


def objects_at(of: Mapping[str, Any], key: str, most: int | None = None) -> list[dict[str, Any]]:
    """A list of objects; empty if it is missing."""
    value = of.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise malformed(f"{key} must be a list of objects (got {brief(value)})", key)
    if most is not None and len(value) > most:
        raise malformed(f"{key} holds {len(value)}, and at most {most} are taken", key)
    return value


def require_open_end(messages: Sequence[Message], key: str = "messages") -> tuple[Message, ...]:
    """The messages of a request, of which the last must leave the word to the policy. `key`: their field."""
    if not messages:
        raise malformed(f"{key} must hold at least one message", key)
    if messages[-1].role == "assistant":
        raise malformed(
            f"{key} must not end with an assistant's: the policy answers, and does not continue a turn", key
        )
    return tuple(messages)
