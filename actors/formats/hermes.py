"""Calls of tools as Hermes and Qwen2.5 write them: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

from __future__ import annotations

import json

from squelch.actors.formats.protocol import ToolCall, as_call

OPEN, CLOSE = "<tool_call>", "</tool_call>"


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
