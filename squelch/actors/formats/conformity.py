"""Compares a format with the model's own chat template on a fixed set of conversations, at the start of a run.

A policy that is fed other ids than its template writes is trained on prompts that nobody will send it. The template is
rendered in the bounded process (`kit.text.chat_template`); a conversation that it refuses is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from squelch.actors.formats.protocol import Format, Message
from squelch.actors.formats.tokens import ModelTokens
from squelch.kit.records.shared_prefix import common_length
from squelch.kit.text.chat_template import TemplateRefused

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a city, e.g. Köln.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
_SYSTEM = {"role": "system", "content": "You are brief."}
_USER = {"role": "user", "content": "Grüße 漢字 \U0001f600: 1,000.5 & \"x\" 'y' {z}\n\n\tWhat is 2 + 3?"}
_REPLY = {"role": "assistant", "content": "It is 5."}
_EMPTY = {"role": "user", "content": ""}
_CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "call_0", "type": "function", "function": {"name": "weather", "arguments": {"city": "Köln"}}}
    ],
}
_RESULT = {"role": "tool", "content": 'sonnig, "20 °C"', "tool_call_id": "call_0", "name": "weather"}


class _Fixed(NamedTuple):
    messages: list[dict[str, Any]]
    tools: list[Any] | None = None
    reply: int | None = None
    """The message whose continuation is compared, too."""


_PLAIN = (
    _Fixed([_SYSTEM, _USER]),
    _Fixed([_USER]),
    _Fixed([_SYSTEM, _USER, _REPLY, _USER], reply=2),
    _Fixed([_SYSTEM, _USER, _REPLY, _EMPTY]),
    _Fixed([_USER, _REPLY, _USER, _REPLY, _USER], reply=3),
)
_WITH_TOOLS = (
    _Fixed([_SYSTEM, _USER], TOOLS),
    _Fixed([_SYSTEM, _USER, _REPLY, _USER], TOOLS, reply=2),
    _Fixed([_SYSTEM, _USER, _CALL, _RESULT], TOOLS),
)


_REASONED = {**_REPLY, "reasoning_content": '2 + 3 = 5, "Grüße"'}
_REASONED_CALL = {**_CALL, "reasoning_content": "Köln?\n\nI ask."}
_SEGMENTS = (_Fixed([_SYSTEM, _USER, _REASONED, _USER]), _Fixed([_USER, _REASONED, _USER, _REASONED, _EMPTY]))
_SEGMENTS_WITH_TOOLS = (
    _Fixed([_SYSTEM, _USER, _REASONED_CALL, _RESULT], TOOLS),
    _Fixed([_SYSTEM, _USER, _REASONED_CALL, _RESULT, _REASONED, _USER], TOOLS),
)


def require_template(one: Format, tools: bool = False) -> None:
    """Raises ValueError with the first difference between the ids of a format and those of the model's own template.
    `tools`: whether conversations with tools are compared, too. Conversations with reasoning are, where a new segment
    begins with what the template writes for them."""
    assert isinstance(one, ModelTokens)
    fixed_ones = [*_PLAIN, *(_WITH_TOOLS if tools else ())]
    if "system" in one.followers:
        fixed_ones.append(_Fixed([_SYSTEM, _USER, _REPLY, _SYSTEM, _USER], reply=2))
    if not one.keeps_reasoning:
        fixed_ones += [*_SEGMENTS, *(_SEGMENTS_WITH_TOOLS if tools else ())]
    for fixed, text in _rendered(one, fixed_ones):
        ids = one.backend.encode(text, add_special_tokens=False).ids
        where = ", ".join(str(message["role"]) for message in fixed.messages) + (" with tools" if fixed.tools else "")
        _compare(one, one.render(fixed.messages, fixed.tools).tolist(), ids, where)
        if fixed.reply is not None:
            before, after = fixed.messages[: fixed.reply], fixed.messages[fixed.reply + 1 :]
            tail = _continued(one, before, fixed.messages[fixed.reply], after, fixed.tools)
            _compare(one, tail, ids[-len(tail) :], f"{where}, behind the reply")


def _rendered(one: ModelTokens, conversations: Sequence[_Fixed]) -> list[tuple[_Fixed, str]]:
    """Those of the conversations that the template takes, with its text."""
    left = list(conversations)
    while left:
        try:
            given = [one.given(fixed.messages, fixed.tools) for fixed in left]
            texts = one.template.render(*zip(*given, strict=True))
        except TemplateRefused as error:
            del left[error.index]
        else:
            return list(zip(left, texts, strict=True))
    return []


def _continued(
    one: Format, before: Sequence[Message], reply: Message, after: Sequence[Message], tools: list[Any] | None
) -> list[int]:
    fed = one.render(before, tools)
    sampled = [*one.encode(reply["content"]).tolist(), one.stop_ids[0]]
    return one.extend(fed, sampled, after, tools).tolist()


def _compare(one: Format, found: Sequence[int], wanted: Sequence[int], where: str) -> None:
    if list(found) == list(wanted):
        return
    assert isinstance(one, ModelTokens)
    place = common_length([np.asarray(found), np.asarray(wanted)])
    said, meant = (
        one.backend.decode(list(ids[max(0, place - 8) : place + 8]), skip_special_tokens=False)
        for ids in (found, wanted)
    )
    raise ValueError(
        f"model.format={one.name} does not write what the model's own chat template writes (messages of {where}): at "
        f"token {place} the format has {said!r} and the template {meant!r}; name the format that fits the model, or "
        "leave model.format out"
    )
