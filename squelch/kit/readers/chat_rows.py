"""Conversations, as rows: chat JSON Lines (`messages`) and ShareGPT's (`conversations`). Pure.

Every message of the assistant is a row, and its prompt is all that stands before it. The last one is the conversation's
turn 0: it was sampled, where those before it may be examples, or the words of another model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from squelch.kit.base.errors import UserError
from squelch.kit.base.values import first, known
from squelch.kit.readers.format_rows import NAMES, LeftOut, Row, digest_of, reward_columns
from squelch.kit.readers.message_graph import SHORT, nested_tool
from squelch.kit.readers.records import Record
from squelch.kit.untrusted.files import Unreadable, brief
from squelch.kit.untrusted.text import parse_json

Message = dict[str, Any]
COLUMNS = ("messages", "conversations")
"""Those that may hold a conversation."""
NO_PROMPT = "a message of the assistant without a prompt"
_ROLES = {"human": "user", "gpt": "assistant", "function_call": "assistant", "observation": "tool"}
"""ShareGPT's, by OpenAI's names."""


def chat(record: Record, where: str) -> Iterator[Row | LeftOut]:
    """A conversation. Without an id of its prompt, its group is that of all that begin alike."""
    column = first(name for name in COLUMNS if known(record.get(name))) or COLUMNS[0]
    messages = _conversation(record.get(column), f"{where}: `{column}`")
    if known(record.get("system")) and messages and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": record["system"]})
    said = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    if not said:
        yield LeftOut("a conversation without a message of the assistant")
        return
    group = first(map(record.get, ("prompt_id", "group_id", "uid")))
    shared = {
        "step": first(map(record.get, NAMES["step"])),
        "tools": tools_of(record.get("tools"), where),
        "group": digest_of(messages[: said[0]]) if group is None else group,
        "rollout": where,
        "rewards": reward_columns(record),
    }
    for number, place in enumerate(said, 1):
        if place:
            row = {"content": partial(message_row, messages, place), "shown": place * SHORT, "turn": len(said) - number}
            yield {**row, **shared}
        else:
            yield LeftOut(NO_PROMPT)


def message_row(messages: Sequence[Message], place: int) -> Row:
    """The prompt and the completion of the message at a place."""
    return {"prompt": list(messages[:place]), "completion": [messages[place]]}


def _conversation(value: Any, where: str) -> list[Message]:
    if not isinstance(value, list):
        raise UserError(f"{where} is {brief(value)}; it must be a list of messages")
    return [_message(one, where) for one in value]


def _message(value: Any, where: str) -> Message:
    """The message as OpenAI has it, without what it lacks."""
    found = {key: inner for key, inner in value.items() if inner is not None} if isinstance(value, dict) else {}
    role, text, calls = found.get("from"), found.get("value"), found.get("tool_calls")
    if isinstance(found.get("role"), str):
        return found | ({"tool_calls": [_call(one) for one in calls]} if isinstance(calls, list) else {})
    if not isinstance(role, str) or not isinstance(text, str):
        raise UserError(
            f"{where} holds {brief(value)}; a message has a `role` and `content`, or `from` and `value` as ShareGPT's"
        )
    called = _parsed(text) if role == "function_call" else []
    calls = called if isinstance(called, list) else [called]
    if calls and all(isinstance(one, dict) and "name" in one for one in calls):
        return {"role": "assistant", "tool_calls": [{"type": "function", "function": one} for one in calls]}
    return {"role": _ROLES.get(role, role), "content": text}


def _call(call: Any) -> Any:
    """The call with its arguments as an object, as servers give them to chat templates."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    arguments = _parsed(function["arguments"])
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else call


def tools_of(value: Any, where: str) -> Any:
    """The schemas of tools, nested as OpenAI nests them; also of a list that is written as text. None for none."""
    found = _parsed(value) if isinstance(value, str) and value.strip() else value
    if not known(found) or found in ([], ""):
        return None
    if not isinstance(found, list):
        raise UserError(f"{where}: `tools` is {brief(value)}; it must be a list of JSON schemas")
    return [nested_tool(one) for one in found]


def _parsed(text: str) -> Any:
    """The JSON value of a text; None if it is none."""
    try:
        return parse_json(text.encode(), "")
    except (Unreadable, UnicodeEncodeError):
        return None
