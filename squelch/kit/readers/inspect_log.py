"""The logs of inspect_ai: samples with the conversation of each epoch.

A message that its model generated says so, wherever an agent puts it (`_said`); the prompt of such a message is what
stands before it. What a call of the model was shown as tools is in the log's events.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from squelch.kit.base.errors import UserError
from squelch.kit.base.values import first, known_id, object_of
from squelch.kit.readers.agent_rows import NOTHING, sizes_before
from squelch.kit.readers.format_rows import LeftOut, Row, as_float, digest_of, is_number
from squelch.kit.readers.message_graph import nested_tool
from squelch.kit.readers.records import Record
from squelch.kit.untrusted.files import MIB, brief

INVALID = "marked as invalid in the log"
NOT_TEXT = "shows pictures, sound or documents"
HIDDEN = "its provider hides the reasoning"
FAILED = "an error ended it"
_TEXT = ("text", "reasoning", "tool_use")
"""Types of a content's blocks; the others are no text."""
_VALUES = {"c": 1.0, "p": 0.5, "i": 0.0, "n": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
"""What a score's word counts, as inspect_ai's `value_to_float` has it."""
_ATTACHMENT = "attachment://"
MAX_ATTACHED = 64 * MIB
"""Characters of attachments in a sample's messages, and in the tools of a call: a short text may name a long one many
times."""


def log(record: Record, where: str) -> Iterator[Row | LeftOut]:
    """The rows of a log's samples."""
    samples, head = record.get("samples"), record.get("eval")
    if not isinstance(samples, list) or not all(isinstance(one, dict) for one in samples):
        raise UserError(f"{where}: `samples` must be a list of samples, as inspect_ai writes them")
    for sample in samples:
        named = f"{where}, sample {brief(sample.get('id'))}, epoch {brief(sample.get('epoch'))}"
        yield from _rows(sample, object_of(head), named)


def _rows(sample: Mapping[str, Any], head: Mapping[str, Any], where: str) -> Iterator[Row | LeftOut]:
    messages, key = sample.get("messages"), sample.get("id")
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        raise UserError(f"{where}: `messages` must be a list of messages, as inspect_ai writes them")
    shared: Row = {
        "group": f"{head.get('task')}/{key}" if known_id(key) else digest_of(sample.get("input")),
        "rollout": sample["uuid"] if known_id(sample.get("uuid")) else where,
        "rewards": dict(_rewards(object_of(sample.get("scores")))),
        "truncated": sample.get("limit") is not None,
    }
    if sample.get("invalidation"):
        yield LeftOut(INVALID)
        return
    if sample.get("error") and not shared["rewards"]:
        yield {**shared, "failed": FAILED}
        return
    said = _said(messages)
    if not said:
        yield {**shared, "untold": NOTHING}
    contents = _Contents(sample, messages, where)
    sizes = sizes_before(messages)
    for turn, index in enumerate(said):
        types = contents.types(index)
        row = {**shared, "turn": turn, "sampler": first((messages[index].get("model"), head.get("model")))}
        if not types <= set(_TEXT):
            yield {**row, "untold": NOT_TEXT}
        elif any(block.get("redacted") for block in _blocks(messages[index])):
            yield {**row, "untold": HIDDEN}
        else:
            yield {**row, "content": partial(contents.of, index), "shown": sizes[index]}


def _said(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Where the model's own messages stand. If none of the assistant's says who made it, as those that a solver put
    together do not, that of the last, as in any conversation."""
    own = [at for at, one in enumerate(messages) if at and one.get("role") == "assistant"]
    if not any(messages[at].get("source") for at in own):
        return own[-1:]
    return [at for at in own if messages[at].get("source") == "generate"]


def _rewards(scores: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
    """Each score by its scorer's name; one that is several values, by the scorer's and the value's."""
    for name, score in scores.items():
        value = object_of(score).get("value")
        for key, one in value.items() if isinstance(value, dict) else [("", value)]:
            yield f"{name}.{key}" if key else name, _number(one)


def _number(value: Any) -> float | None:
    if is_number(value) or isinstance(value, bool):
        return as_float(value)
    word = value.strip().lower() if isinstance(value, str) else ""
    try:
        return _VALUES[word] if word in _VALUES else float(word)
    except ValueError:
        return None


class _Contents:
    """The prompts and completions of a sample's messages. A message is converted once, however many prompts show it."""

    def __init__(self, sample: Mapping[str, Any], messages: Sequence[Mapping[str, Any]], where: str) -> None:
        self._messages, self._attached = messages, object_of(sample.get("attachments"))
        self._put, self._where = [0], where
        self._converted: dict[int, Row] = {}
        self._tools = dict(_tools_shown(sample.get("events")))
        self._types = list[set[str]]()
        for message in messages:
            before = self._types[-1] if self._types else set[str]()
            own = {str(block.get("type")) for block in _blocks(message)}
            self._types.append(before if own <= before else before | own)

    def types(self, index: int) -> set[str]:
        """The types of the blocks of a message and those before it."""
        return self._types[index]

    def of(self, index: int) -> Row:
        """The prompt and the completion of a message."""
        shown, put = self._tools.get(str(self._messages[index].get("id")), []), [0]
        tools = [nested_tool(self._whole(tool, put)) for tool in shown]
        said = [self._message(one) for one in range(index + 1)]
        return {"prompt": said[:-1], "completion": said[-1:], "tools": tools or None}

    def _message(self, index: int) -> Row:
        if index not in self._converted:
            self._converted[index] = _message(self._whole(self._messages[index], self._put))
        return self._converted[index]

    def _whole(self, value: Any, put: list[int]) -> Any:
        """The value with each attachment in its place; `put`: how many characters have been put so far."""
        if isinstance(value, dict):
            return {key: self._whole(inner, put) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._whole(inner, put) for inner in value]
        if not isinstance(value, str) or not value.startswith(_ATTACHMENT):
            return value
        found = self._attached.get(value.removeprefix(_ATTACHMENT), value)
        put[0] += len(found) if isinstance(found, str) else 0
        if put[0] > MAX_ATTACHED:
            raise UserError(f"{self._where}: its attachments stand for more than {MAX_ATTACHED:,} characters of text")
        return found


def _tools_shown(events: Any) -> Iterator[tuple[str, list[Any]]]:
    """(id of the message that a call of the model returned, the tools that it was shown)."""
    for event in events if isinstance(events, list) else ():
        choices = object_of(object_of(event).get("output")).get("choices")
        message = object_of(object_of(choices[0]).get("message")) if isinstance(choices, list) and choices else {}
        tools = object_of(event).get("tools")
        if known_id(message.get("id")) and isinstance(tools, list):
            yield str(message["id"]), tools


def _message(message: Mapping[str, Any]) -> Row:
    """The message without what no template reads, its calls nested as OpenAI nests them."""
    found = {key: message[key] for key in ("role", "content", "tool_call_id") if message.get(key) is not None}
    if isinstance(found.get("content"), list):
        found["content"] = [block for block in found["content"] if not object_of(block).get("redacted")]
    if isinstance(message.get("tool_calls"), list) and message["tool_calls"]:
        found["tool_calls"] = [_nested_call(object_of(call)) for call in message["tool_calls"]]
    return found


def _nested_call(call: Mapping[str, Any]) -> Row:
    function = {"name": call.get("function"), "arguments": call.get("arguments")}
    return {"id": call.get("id"), "type": "function", "function": function}


def _blocks(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    content = message.get("content")
    return list(map(object_of, content)) if isinstance(content, list) else []
