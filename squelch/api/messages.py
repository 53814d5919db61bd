"""Renders prompts that are lists of messages with a model's chat template.

Only the template's own text yields control tokens (`actors/text`). A content without control tokens is rendered as it
is, because templates may look into it (for example, to leave out old reasoning). A content with control tokens is
rendered as a placeholder, and its control tokens are encoded as ordinary text. Control tokens in any other field are
refused with the row's number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tokenizers import Tokenizer

from squelch.actors.text.chat_template import ChatTemplate, TemplateRefused, Words
from squelch.actors.text.control_tokens import Piece, TextEncoder, foreign_pieces

Messages = list[dict[str, Any]]
HELD_FIELDS = ("content", "reasoning_content")
BATCH_CHARACTERS = 2**22
"""Characters of messages that are rendered in one process."""


class BadSample(ValueError):
    """A row that cannot be converted; the text names it and says what would be right."""


class MessageRenderer:
    """Renders messages as pieces of text. `allowed`: texts that may be matched in contents, such as the markers of a
    reasoning, which instructions name; `where`: the source of the rows, as errors name it."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer, allowed: Sequence[str], where: str = "") -> None:
        self._template, self._allowed, self._where = template, tuple(allowed), f"{where}, " if where else ""
        self._encoder = TextEncoder(tokenizer, template.source)
        self._words = Words()

    def render(self, prompts: Sequence[tuple[int, Messages]]) -> Iterator[tuple[int, list[Piece]]]:
        """(row number, pieces of its prompt) of each prompt, in order; `prompts`: (row number, messages).

        Raises BadSample with the row's number if its messages cannot be rendered.
        """
        for batch in _batches(prompts):
            held: list[list[str]] = [[] for _ in batch]
            shown = [self._hidden(row, messages, held[place]) for place, (row, messages) in enumerate(batch)]
            try:
                texts = self._template.render(shown)
            except TemplateRefused as error:
                raise BadSample(f"{self._where}row {batch[error.index][0]}: {error}") from error
            for (row, _), text, contents in zip(batch, texts, held, strict=True):
                yield row, self._pieces(text, contents)

    def _hidden(self, row: int, messages: Messages, held: list[str]) -> Messages:
        """The messages with a placeholder in place of each content that may yield control tokens; `held` takes it."""
        return [{key: self._field(row, key, value, held) for key, value in one.items()} for one in messages]

    def _field(self, row: int, key: str, value: Any, held: list[str]) -> Any:
        if key in HELD_FIELDS and isinstance(value, str):
            if not self._encoder.may_control(value, self._allowed):
                return value
            held.append(value.strip())
            return self._words.hide(value, len(held) - 1)
        for text in _strings(value):
            if found := self._encoder.matched(text):
                raise BadSample(
                    f"{self._where}row {row}: `{key}` of a message holds the control token {next(iter(found))!r}; "
                    "only `content` may"
                )
        return value

    def _pieces(self, text: str, held: Sequence[str]) -> list[Piece]:
        pieces: list[Piece] = []
        for part in self._words.split(text):
            pieces += [(part, False)] if isinstance(part, str) else foreign_pieces(held[part], self._allowed)
        return pieces


def is_messages(value: Any) -> bool:
    """Whether a value is a list of messages, each with a role, and contents that are text or missing."""

    def whole(one: Any) -> bool:
        return (
            isinstance(one, dict)
            and isinstance(one.get("role"), str)
            and all(isinstance(one.get(key) or "", str) for key in ("content", "reasoning_content"))
        )

    return isinstance(value, list) and bool(value) and all(map(whole, value))


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


def _batches(prompts: Sequence[tuple[int, Messages]]) -> Iterator[list[tuple[int, Messages]]]:
    """Prompts in order, at most `BATCH_CHARACTERS` together unless one alone has more."""
    batch: list[tuple[int, Messages]] = []
    size = 0
    for row, messages in prompts:
        own = sum(map(len, _strings(messages)))
        if batch and size + own > BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
        batch.append((row, messages))
        size += own
    if batch:
        yield batch
