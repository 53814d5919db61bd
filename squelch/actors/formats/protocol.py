"""The protocol of formats: how a model's messages become ids, and what its sampled ids say.

    fed  = format.render(messages, tools)             system, user, assistant and tool messages, and JSON schemas
    said = format.parse(sampled, fed, tools)          reasoning with its exact tokens, content, calls of tools
    fed  = fed + sampled + format.extend(fed, sampled, [the next messages], tools)
    fed  = format.render(all messages, tools)         instead, where the template removes reasoning (`retention`)

| implementation | for |
|---|---|
| `actors.play.codec.ChatCodec` | the chat template itself, continued turn by turn; calls as Qwen2.5's (`hermes`) |
| `packaged.PackagedFormat` | families of the package `renderers`; their templates may remove earlier reasoning |

Invariants of every implementation:

- Sampled ids are never decoded and encoded again: `extend` returns only what follows them.
- Text of messages yields no control token, except that the codec knows the markers of Squelch's turns in a system
  message. Schemas are part of what is fed, and are refused if they spell one.
- `parse` takes any ids of the model's vocabulary and raises nothing; its spans lie within the ids.
- Several threads may use one format at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

Message = Mapping[str, Any]
Tools = Sequence[Mapping[str, Any]] | None
"""JSON schemas of the tools in the form that OpenAI's API has: {"type": "function", "function": {"name": ...}}."""
Ids = np.ndarray | Sequence[int]
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class ToolsRefused(ValueError):
    """Schemas of tools that a format cannot show."""


@dataclass(frozen=True)
class ToolCall:
    """A call as the model wrote it. `arguments`: text of a JSON object, empty with an `error`, which says why `raw` is
    no call."""

    id: str
    name: str
    arguments: str
    raw: str
    error: str = ""


@dataclass(frozen=True)
class Parsed:
    """What sampled ids say. `reasoning`: (start, end) of its ids, as of `tokens.reasoning_span`."""

    reasoning: tuple[int, int]
    content: str
    tool_calls: tuple[ToolCall, ...] = ()


class Format(Protocol):
    """One model's format, and its tokens (`tokens.ModelTokens`)."""

    name: str
    reasons: bool
    """Whether the format has a place for reasoning. Without one a policy is `mute` (`kit.diagnosis.regime`)."""
    keeps_reasoning: bool
    """Whether the reasoning of earlier turns stays (`model.keep_reasoning: all`), whatever the template does."""
    whole_content: bool
    """Whether the content of a turn is all that was sampled, its reasoning included."""
    vocab_size: int
    stop_ids: tuple[int, ...]
    pad_id: int

    @property
    def most_characters(self) -> float:
        """Most characters other than white space for which a token of a prompt stands; infinite if unknown."""

    @property
    def followers(self) -> tuple[str, ...]:
        """Roles of messages that `extend` takes."""

    def render(self, messages: Sequence[Message], tools: Tools = None) -> np.ndarray:
        """(num_tokens,) int32: the conversation and the opening of the assistant's turn. Raises ValueError for what the
        format cannot show, ToolsRefused where the tools are at fault."""

    def shown_reasoning(self, messages: Sequence[Message], tools: Tools = None) -> frozenset[int]:
        """The indices of the messages whose reasoning (the field `reasoning_content`) `render` shows."""

    def extend(self, fed: Ids, sampled: Ids, messages: Sequence[Message], tools: Tools = None) -> np.ndarray:
        """(num_tokens,) int32: what follows a sampled turn, up to the opening of the next one. It begins with the end
        of the turn unless one of `stop_ids` was sampled.

        `fed`: all ids before the turn; `messages`: of roles in `followers`. Raises ValueError for messages that cannot
        follow a turn.
        """

    def begins_inside(self, fed: Ids) -> bool | None:
        """Whether a turn behind these ids begins inside of its reasoning; None if the format has none."""

    def parse(self, sampled: Ids, fed: Ids = (), tools: Tools = None) -> Parsed:
        """What a sampled turn says; `fed`: all ids before it; `tools`: those that the prompt shows."""

    def reasoning_of(self, sampled: Ids, said: Parsed) -> tuple[int, int]:
        """(start, end) of the reasoning that a run records of a turn: what `parse` found, or what stands before the
        answer, or the whole turn (`model.reasoning`)."""

    def answer_end(self, ids: Ids) -> int | None:
        """Number of ids up to the end of the answer, among the ids sampled from the end of the reasoning on; None
        without an answer."""

    def text(self, ids: Ids) -> str:
        """As `ModelTokens.text`."""

    def completion_text(self, ids: Ids) -> str:
        """As `ModelTokens.completion_text`."""

    def encode(self, text: str) -> np.ndarray:
        """As `ModelTokens.encode`."""

    def check(self, texts: list[str]) -> None:
        """As `ModelTokens.check`."""


FOLLOWERS = ("user", "tool")
"""Roles of messages that follow a turn in every format."""


def require_followers(messages: Sequence[Message], followers: Sequence[str] = FOLLOWERS) -> str:
    """The roles of messages that are to follow a turn, in words. Raises ValueError if some cannot."""
    roles = [str(one["role"]) for one in messages]
    if not roles or set(roles) - set(followers):
        can = " and ".join(followers)
        raise ValueError(f"messages of roles {', '.join(roles) or 'none'} cannot follow a turn; {can} can")
    return ", ".join(roles)


def as_call(number: int, name: Any, arguments: Any, raw: str, native_id: str | None = None) -> ToolCall:
    """The call that a parser found; one with an error where it is none."""
    call_id = native_id or f"call_{number}"
    if not isinstance(name, str) or not name or _LONE_SURROGATE.search(name):
        return ToolCall(call_id, "", "", raw, "it names no function")
    try:
        given = json.loads(arguments) if isinstance(arguments, str) else arguments
        if not isinstance(given, dict):
            return ToolCall(call_id, name, "", raw, "its arguments are no JSON object")
        text = json.dumps(given, ensure_ascii=False, allow_nan=False)
        text.encode()  # a lone surrogate, which JSON can spell, is a ValueError: no client could send it back
        return ToolCall(call_id, name, text, raw)
    except (ValueError, RecursionError) as error:
        return ToolCall(call_id, name, "", raw, f"its arguments are no JSON ({error})")
