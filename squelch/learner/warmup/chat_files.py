"""Conversations of a file as transcripts: JSONL, or Parquet, with a column `messages`.

    {"messages": [{"role": "system", "content": "..."}, {"role": "user", "content": "..."},
                  {"role": "assistant", "content": "<think>...</think><answer>...</answer>"}, ...]}

A row may begin with a system message; then user and assistant take turns, and the assistant has the last word. Only the
assistant's contents are learned. Each begins with `<think>`, because a rollout feeds that opening to the policy:
a reply without it would teach what no rollout asks for.

A file may come from anybody: it is read within bounds, and every error names the row.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from squelch.actors.play.codec import Message
from squelch.kit.text.tags import THINK_OPEN
from squelch.kit.untrusted.decoder_process import bounded_reading
from squelch.kit.untrusted.files import Unreadable, brief, open_file
from squelch.kit.untrusted.parquet import table_names, table_rows
from squelch.kit.untrusted.text import filled_lines, parse_object
from squelch.learner.warmup.demonstrations import Transcript

COLUMN = "messages"
ROLES = ("system", "user", "assistant")
MAX_ROWS = 1_000_000
ROWS_AT_ONCE = 1024
"""Rows of a Parquet file that are converted to Python objects at once."""
SHAPE = f"`{COLUMN}`: a list of objects with `role` ({', '.join(ROLES)}) and `content` (text)"


def read_transcripts(path: Path) -> list[Transcript]:
    """The conversations of a file, in order. Raises Unreadable, with file and row, if one is malformed."""
    with bounded_reading(str(path)):
        found = [_transcript(row, f"{path}, row {number}") for number, row in _rows(path)]
    if not found:
        raise Unreadable(f"{path} holds no conversations; each row needs {SHAPE}")
    return found


def _rows(path: Path) -> Iterator[tuple[int, Any]]:
    """(number, counted from 1, and messages) of each row."""
    reader = _parquet_rows if path.suffix == ".parquet" else _json_rows
    for number, row in reader(path):
        if number > MAX_ROWS:
            raise Unreadable(f"{path} holds more than {MAX_ROWS} rows; give fewer")
        yield number, row


def _json_rows(path: Path) -> Iterator[tuple[int, Any]]:
    with open_file(path) as file:
        for number, line in filled_lines(file, str(path)):
            yield number, parse_object(line, f"{path}, row {number}").get(COLUMN)


def _parquet_rows(path: Path) -> Iterator[tuple[int, Any]]:
    if COLUMN not in table_names(path):
        raise Unreadable(f"{path} has no column `{COLUMN}`; each row needs {SHAPE}")
    yield from ((number, row[COLUMN]) for number, row in table_rows(path, [COLUMN], ROWS_AT_ONCE))


def _transcript(given: Any, where: str) -> Transcript:
    messages = _messages(given, where)
    start = 1 if messages[0]["role"] == "system" else 0
    for place, message in enumerate(messages[start:]):
        wanted = ROLES[1 + place % 2]
        if message["role"] != wanted:
            raise Unreadable(
                f"{where}: message {start + place + 1} has the role {message['role']!r}, where {wanted!r} is needed: "
                "user and assistant take turns, after at most one system message"
            )
    if messages[-1]["role"] != "assistant":
        raise Unreadable(f"{where}: the last message is the {messages[-1]['role']}'s; the assistant's must be the last")
    opening, rest = messages[: start + 1], messages[start + 1 :]
    said = [_reply(message["content"], where) for message in rest[::2]]
    return Transcript(opening, list(zip(said, [*rest[1::2], None], strict=True)), where)


def _messages(given: Any, where: str) -> list[Message]:
    if not isinstance(given, list) or len(given) < 2:
        raise Unreadable(f"{where}: {brief(given)} is no conversation; {SHAPE} is needed")
    for place, message in enumerate(given, 1):
        fields = message if isinstance(message, dict) else {}
        if fields.get("role") not in ROLES or not isinstance(fields.get("content"), str):
            raise Unreadable(f"{where}: message {place} is {brief(message)}; {SHAPE} is needed")
    return [{"role": one["role"], "content": one["content"]} for one in given]


def _reply(content: str, where: str) -> str:
    """The reply after its `<think>`, which a rollout feeds."""
    text = content.lstrip()
    if not text.startswith(THINK_OPEN):
        raise Unreadable(
            f"{where}: the assistant's message {brief(content)} does not begin with {THINK_OPEN}, with which a rollout "
            f"opens every reply; write {THINK_OPEN}REASONING</think><answer>ANSWER</answer>"
        )
    return text.removeprefix(THINK_OPEN)
