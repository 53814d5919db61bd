"""Tools as Hermes and Qwen2.5 write them: schemas in `<tools>`, calls in `<tool_call>`, results in `<tool_response>`.

`tool_calls` reads the calls of every turn in the format `own`. Where there are tools and the chat template shows none,
`as_text` writes what the template is given: messages of system, user and assistant alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from squelch.actors.formats.protocol import Message, ToolCall, as_call

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_BLOCK = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{schemas}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def tool_calls(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    """(the text before the first call, the calls) of a turn's text behind its reasoning. Raises nothing."""
    content, *rest = text.split(OPEN)
    return content, tuple(_call(number, block) for number, block in enumerate(rest))


def _call(number: int, block: str) -> ToolCall:
    raw, closing, _ = block.partition(CLOSE)
    raw = raw.strip()
    if not closing:
        return ToolCall(f"call_{number}", "", "", raw, f"it is not closed by {CLOSE}")
    try:
        said = json.loads(raw)
    except (ValueError, RecursionError) as error:
        return ToolCall(f"call_{number}", "", "", raw, f"it is no JSON ({error})")
    if not isinstance(said, dict):
        return ToolCall(f"call_{number}", "", "", raw, "it is no JSON object")
    return as_call(number, said.get("name"), said.get("arguments", said.get("parameters", {})), raw)


# --- for a template that shows no tools ---


def as_text(messages: Sequence[Message], tools: Sequence[Any]) -> list[tuple[int, dict[str, Any]]]:
    """The messages with tools, calls and results as text, each with the index of the first message that it shows (-1
    for a system message that the tools alone need). A content is text, or `control_tokens.Piece`s.

    The tools end the system message. Results that follow each other, and what the user says behind them, are one
    message of the user, so that roles alternate where they did. Raises ValueError for a call that is none.
    """
    found: list[tuple[int, dict[str, Any]]] = []
    last = ""
    for index, message in enumerate(messages):
        role, content = message["role"], message["content"]
        result = (("<tool_response>\n", False), (content, True), ("\n</tool_response>", False))
        if last == "tool" and role in ("tool", "user"):
            more = result if role == "tool" else ((content.strip(), True),)
            found[-1][1]["content"] += (("\n", False), *more) if role == "tool" or content.strip() else ()
        elif role == "tool":
            found.append((index, {"role": "user", "content": result}))
        else:
            found.append((index, _with_calls(message)))
        last = role
    block = _BLOCK.format(schemas="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if not found or found[0][1]["role"] != "system":
        found.insert(0, (-1, {"role": "system", "content": ""}))
    rules = found[0][1]["content"].strip()
    found[0][1]["content"] = (*([(rules, True), ("\n\n", False)] if rules else ()), (block, False))
    return found


def _with_calls(message: Message) -> dict[str, Any]:
    """A message with its calls at the end of its content."""
    found = {key: value for key, value in message.items() if key != "tool_calls"}
    said = message["content"].strip()
    calls = [f"{OPEN}\n{_written(call)}\n{CLOSE}" for call in message.get("tool_calls") or ()]
    if calls:
        text = "\n".join(calls)
        found["content"] = ((said, True), (f"\n{text}", False)) if said else ((text, False),)
    return found


def _written(call: Any) -> str:
    """A call as JSON; its arguments may be given as their JSON."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ValueError("each of a message's tool_calls must have a function with a name")
    arguments = function.get("arguments") or {}
    given = json.loads(arguments) if isinstance(arguments, str) else arguments
    return json.dumps({"name": function["name"], "arguments": given}, ensure_ascii=False)
