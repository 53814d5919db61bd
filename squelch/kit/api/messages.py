"""Conversations, as lists of messages: their form, and how a model's chat template renders them.

Only the template's own text yields control tokens (`squelch/kit/text`). A content without control tokens is rendered
as it is, because templates may look into it (for example, to leave out old reasoning). A content with control tokens is
rendered as a placeholder, and its control tokens are encoded as ordinary text. Control tokens in any other field are
refused with the row's number.

A content that shows pictures is rendered as its parts, in which the template writes the pictures' places. A template
that writes more, less or elsewhere than its text of the message with the places in it, as a run feeds it
(`actors.play.codec`), is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from squelch.kit.text.chat_template import ChatTemplate, TemplateRefused, Words
from squelch.kit.text.control_tokens import Piece, TextEncoder, foreign_pieces

Messages = list[dict[str, Any]]
KEPT = 4096
"""Texts of messages of which it is kept whether they hold control tokens."""
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
"""Under which keys of a message trainers and templates keep its reasoning."""
TEXT_BLOCKS, REASONING_BLOCKS = ("text", "input_text", "output_text"), ("thinking", "reasoning", "reasoning_text")
CALL_BLOCKS = ("tool_use", "tool_call", "function_call")
"""The types of a content's blocks."""
PICTURE_BLOCKS, VIDEO_BLOCKS = ("image", "image_url", "input_image"), ("video", "video_url", "input_video")
"""Those that show something."""
HELD_FIELDS = ("content", *REASONING_FIELDS)
BATCH_CHARACTERS, BATCH_SIZE = 2**22, 256
"""Bounds of the messages, and of the conversations, that are rendered in one process."""


class BadSample(ValueError):
    """A row that cannot be converted; the text names it and says what would be right."""


class Conversation(NamedTuple):
    """What the template renders: `row`, the number by which errors name it; `tools`, JSON schemas; `reply`, whether it
    ends with the assistant's reply and so without the generation prompt."""

    row: int
    messages: Messages
    tools: list[Any] | None = None
    reply: bool = False

    @property
    def key(self) -> str:
        """Equal for what is rendered alike."""
        return json.dumps([self.messages, self.tools, self.reply], default=repr)


class Spoken(NamedTuple):
    """A message of the assistant, taken apart."""

    content: str
    reasoning: str
    """Empty if the content holds it, or nothing does."""
    calls: bool
    """Whether it calls tools."""


class MessageRenderer:
    """Renders messages as pieces of text. `allowed`: texts that may be matched in contents, such as the markers of a
    reasoning, which instructions name; `where`: the source of the rows, as errors name it; `place`: the text of a
    picture's place, empty if none can be shown."""

    def __init__(
        self, template: ChatTemplate, tokenizer: Tokenizer, allowed: Sequence[str], where: str = "", place: str = ""
    ) -> None:
        self.template, self._allowed, self._where = template, tuple(allowed), f"{where}, " if where else ""
        self._place = place
        encoder = TextEncoder(tokenizer, template.source)
        # the turns of a long conversation show the same messages again and again
        self._matched = lru_cache(KEPT)(encoder.matched)
        self._may_control = lru_cache(KEPT)(lambda text: encoder.may_control(text, self._allowed))
        self._words = Words()
        named = [name for name in REASONING_FIELDS if name in template.source]
        self._reasoning_field = named[0] if named else REASONING_FIELDS[0]

    def render(self, conversations: Sequence[Conversation]) -> Iterator[list[Piece]]:
        """The pieces of each conversation, in order. Raises BadSample with the row's number if one cannot be
        rendered."""
        for batch in _batches(conversations):
            held: list[list[str]] = [[] for _ in batch]
            shown = [self._hidden(one, held[place]) for place, one in enumerate(batch)]
            seeing = [place for place, messages in enumerate(shown) if any(map(shows_pictures, messages))]
            asked = [*batch, *(batch[place] for place in seeing)]
            try:
                texts = self.template.render(
                    [*shown, *(self._as_text(shown[place]) for place in seeing)],
                    [one.tools for one in asked],
                    [one.reply for one in asked],
                )
            except TemplateRefused as error:
                raise BadSample(f"{self._where}row {asked[error.index].row}: {error}") from error
            for place, text in zip(seeing, texts[len(batch) :], strict=True):
                self._require_places(batch[place].row, texts[place], text)
            for text, contents in zip(texts, held, strict=False):
                yield self._pieces(text, contents)

    def reply(self, spoken: Spoken) -> dict[str, Any]:
        """A message of the assistant as the template reads it, without its calls of tools."""
        return {"role": "assistant", "content": spoken.content, self._reasoning_field: spoken.reasoning}

    def _hidden(self, one: Conversation, held: list[str]) -> Messages:
        """The messages with a placeholder in place of each content that may yield control tokens; `held` takes it."""
        self._refuse_control(one.row, "`tools`", one.tools)
        return [
            {key: self._field(one.row, key, value, held) for key, value in _shown(each).items()}
            for each in one.messages
        ]

    def _as_text(self, messages: Messages) -> Messages:
        """The messages with the places of pictures in their texts."""
        return [
            {**one, "content": "".join(part.get("text", self._place) for part in one["content"])}
            if shows_pictures(one)
            else one
            for one in messages
        ]

    def _require_places(self, row: int, text: str, expected: str) -> None:
        if text != expected:
            least = min(len(text), len(expected))
            at = next((k for k in range(least) if text[k] != expected[k]), least)
            raise BadSample(
                f"{self._where}row {row}: the chat template does not write a message's texts and pictures one after "
                f"another: {text[at : at + 40]!r} stands where {expected[at : at + 40]!r} should; give ids"
            )

    def _field(self, row: int, key: str, value: Any, held: list[str]) -> Any:
        if key == "content" and isinstance(value, list):
            if not self._place:
                raise BadSample(
                    f"{self._where}row {row}: a message shows a picture; `squelch score` reads files with pictures, "
                    "for a model with a vision tower"
                )
            return [
                {**part, "text": self._field(row, key, part["text"], held)} if "text" in part else part
                for part in value
            ]
        if key in HELD_FIELDS and isinstance(value, str):
            if not self._may_control(value):
                return value
            held.append(value.strip())
            return self._words.hide(value, len(held) - 1)
        self._refuse_control(row, f"`{key}` of a message", value)
        return value

    def _refuse_control(self, row: int, name: str, value: Any) -> None:
        for text in _strings(value):
            if found := self._matched(text):
                raise BadSample(
                    f"{self._where}row {row}: {name} holds the control token {next(iter(found))!r}; only `content` may"
                )

    def _pieces(self, text: str, held: Sequence[str]) -> list[Piece]:
        pieces: list[Piece] = []
        for part in self._words.split(text):
            pieces += [(part, False)] if isinstance(part, str) else foreign_pieces(held[part], self._allowed)
        return pieces


def is_messages(value: Any) -> bool:
    """Whether a value is a list of messages, each with a role. Contents are text, missing, or blocks with a type."""
    return isinstance(value, list) and bool(value) and all(map(_is_message, value))


def as_messages(value: Any) -> Any:
    """One message alone as a list of one; every other value as it is."""
    return [value] if isinstance(value, dict) and _is_message(value) else value


def _is_message(one: Any) -> bool:
    if not isinstance(one, dict) or not isinstance(one.get("role"), str):
        return False
    texts = all(isinstance(one.get(key) or "", str) for key in REASONING_FIELDS)
    calls, content = one.get("tool_calls") or [], one.get("content") or ""
    return texts and isinstance(calls, list) and (isinstance(content, str) or _is_blocks(content))


def _is_blocks(content: Any) -> bool:
    def whole(block: Any) -> bool:
        texts = ("text", *REASONING_FIELDS)
        return (
            isinstance(block, dict)
            and isinstance(block.get("type"), str)
            and all(isinstance(block.get(key) or "", str) for key in texts)
        )

    return isinstance(content, list) and all(map(whole, content))


def is_tools(value: Any) -> bool:
    """Whether a value is a list of JSON schemas."""
    return isinstance(value, list) and all(isinstance(one, dict) for one in value)


def plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message without its empty fields, its blocks joined to one text."""
    found = {key: value for key, value in message.items() if value is not None}
    if isinstance(found.get("content"), list):
        found["content"] = "".join(
            block.get("text") or "" for block in found["content"] if block["type"] in TEXT_BLOCKS
        )
    return found


def shows_pictures(message: Mapping[str, Any]) -> bool:
    """Whether a block of the message's content is a picture."""
    content = message.get("content")
    return isinstance(content, list) and any(block["type"] in PICTURE_BLOCKS for block in content)


def _shown(message: Mapping[str, Any]) -> dict[str, Any]:
    """As `plain`; a content that shows pictures is a list of its texts and pictures."""
    if not shows_pictures(message):
        return plain(message)
    parts = []
    for block in message["content"]:
        if block["type"] in PICTURE_BLOCKS:
            parts.append({"type": "image"})
        elif block["type"] in TEXT_BLOCKS and block.get("text"):
            parts.append({"type": "text", "text": block["text"]})
    return plain(message) | {"content": parts}


def spoken(message: Mapping[str, Any]) -> Spoken:
    """A message of the assistant, with its reasoning wherever it is kept."""
    shown, blocks = plain(message), message.get("content")
    blocks = blocks if isinstance(blocks, list) else []
    thought = [block for block in blocks if block["type"] in REASONING_BLOCKS]
    places = [(shown, key) for key in REASONING_FIELDS]
    places += [(block, key) for block in thought for key in (*REASONING_FIELDS, "text")]
    reasoning = next((one[key] for one, key in places if one.get(key)), "")
    calls = bool(message.get("tool_calls")) or any(block["type"] in CALL_BLOCKS for block in blocks)
    return Spoken(shown.get("content") or "", reasoning, calls)


def _strings(value: Any) -> Iterator[str]:
    """Every text in a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _strings(key)
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


def _batches(conversations: Sequence[Conversation]) -> Iterator[list[Conversation]]:
    """Conversations in order, within the bounds of one process unless one alone exceeds them."""
    batch: list[Conversation] = []
    size = 0
    for one in conversations:
        own = sum(map(len, _strings([one.messages, one.tools])))
        if batch and (size + own > BATCH_CHARACTERS or len(batch) == BATCH_SIZE):
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += own
    if batch:
        yield batch
