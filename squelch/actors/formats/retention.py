"""Reasoning of earlier turns that a chat template removes (`model.keep_reasoning: template`).

A template such as Qwen3's shows the reasoning of a turn while results of tools come, and removes it when a new message
of the user does. There a trajectory's next segment begins: it is fed what the template writes for the whole
conversation, earlier turns included, of which nothing is sampled. Everywhere else the segment goes on.

    kept = Kept(format, tools).begun(messages)      the messages that a segment's first prompt shows
    kept = kept.after(messages)                     the last one is a turn that was sampled (`message_of`)
    if kept.removes(messages):                      with further messages behind it, a new segment begins:
        fed, kept = format.render(messages, tools), kept.begun(messages)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from squelch.actors.formats.protocol import Format, Ids, Message, Parsed, Tools
from squelch.kit.text.tags import THINK_CLOSE, THINK_OPEN

CAUSE = "template"
"""Why a segment begins where the template removed reasoning (`records.Segment`)."""


@dataclass(frozen=True)
class ShownReasoning:
    """The messages, by index, whose reasoning is among a segment's ids: `shown`."""

    format: Format
    tools: Tools = None
    shown: frozenset[int] = frozenset()

    def begun(self, messages: Sequence[Message]) -> ShownReasoning:
        """The same for a segment whose first prompt shows these messages."""
        return replace(self, shown=frozenset() if self.format.keeps_reasoning else self._now(messages))

    def after(self, messages: Sequence[Message]) -> ShownReasoning:
        """The same once the last message was sampled in the segment."""
        return replace(self, shown=self.shown | reasoned(messages[-1:], len(messages) - 1))

    def removes(self, messages: Sequence[Message]) -> bool:
        """Whether the template shows these messages without a reasoning that is among the segment's ids."""
        return not (self.format.keeps_reasoning or self.shown <= self._now(messages))

    def _now(self, messages: Sequence[Message]) -> frozenset[int]:
        return self.format.shown_reasoning(messages, self.tools) if reasoned(messages) else frozenset()


def reasoned(messages: Sequence[Message], first: int = 0) -> frozenset[int]:
    """The indices, counted from `first`, of the messages with reasoning."""
    texts = [message.get("reasoning_content") for message in messages]
    return frozenset(first + index for index, text in enumerate(texts) if isinstance(text, str) and text.strip())


def message_of(one: Format, sampled: Ids, said: Parsed) -> dict[str, Any]:
    """A sampled turn as a message, as a server with parsers of reasoning and tools sends it. If a call is none, the
    content holds all text behind the reasoning. If a format's content is the whole turn, no reasoning stands beside it.
    """
    if one.whole_content:
        return {"role": "assistant", "content": said.content}
    first, last = said.reasoning
    reasoning, rest = one.text(sampled[first:last]), one.text(sampled[last:])
    if one.reasons and first == last == len(sampled):  # cut within its reasoning
        reasoning, rest = one.text(sampled).replace(THINK_OPEN, ""), ""
    elif one.reasons and THINK_CLOSE in rest:
        rest = rest.partition(THINK_CLOSE)[2]
    broken = any(call.error for call in said.tool_calls)
    found: dict[str, Any] = {"role": "assistant", "content": rest.strip() if broken or not rest else said.content}
    if reasoning.strip():
        found["reasoning_content"] = reasoning.strip()
    if said.tool_calls and not broken:
        found["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.loads(call.arguments)},
            }
            for call in said.tool_calls
        ]
    return found
