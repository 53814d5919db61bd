"""The turns of Squelch as a `Format`, for agents that read them.

The reasoning is opened for the policy, and the content of a turn is all that was sampled,
`thoughts </think> <answer> Up </answer>`, so that `envs.format` can read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from squelch.actors.formats.protocol import FOLLOWERS, Ids, Parsed, Tools, ToolsRefused, require_followers
from squelch.actors.play.codec import ChatCodec


class SquelchFormat:
    """The turns that the codec writes for episodes (`actors.play.turn_format.SquelchTurns`); a `Format`."""

    name, reasons, keeps_reasoning, whole_content, followers = "squelch", True, True, True, FOLLOWERS

    def __init__(self, codec: ChatCodec) -> None:
        self._codec = codec
        self.vocab_size, self.stop_ids, self.pad_id = codec.vocab_size, codec.stop_ids, codec.pad_id
        self.most_characters = codec.most_characters

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Tools = None) -> np.ndarray:
        """As `Format.render`, with the opening of the reasoning."""
        if tools:
            raise ToolsRefused(
                "the turns of Squelch have no tools; leave them out, or set environment.options.turns=model"
            )
        return self._codec.first_turn([_plain(one) for one in messages])

    def shown_reasoning(self, messages: Sequence[Mapping[str, Any]], tools: Tools = None) -> frozenset[int]:
        """As `Format.shown_reasoning`: none has that field, because reasoning is part of the content."""
        return frozenset()

    def extend(self, fed: Ids, sampled: Ids, messages: Sequence[Mapping[str, Any]], tools: Tools = None) -> np.ndarray:
        """As `Format.extend`, with the opening of the reasoning."""
        if require_followers(messages) != "user":
            raise ValueError("one message of the user follows a turn of Squelch")
        closed = len(sampled) > 0 and int(sampled[-1]) in self.stop_ids
        return self._codec.next_turn(_plain(messages[0]), closed)

    def begins_inside(self, fed: Ids) -> bool:
        """As `Format.begins_inside`."""
        return True

    def parse(self, sampled: Ids, fed: Ids = (), tools: Tools = None) -> Parsed:
        """As `Format.parse`; nothing is left out of the content."""
        return Parsed(self._codec.reasoning_span(sampled), self._codec.text(sampled))

    def reasoning_of(self, sampled: Ids, said: Parsed) -> tuple[int, int]:
        """As `Format.reasoning_of`."""
        return said.reasoning

    def answer_end(self, ids: Ids) -> int | None:
        """As `Format.answer_end`."""
        return self._codec.answer_end(ids)

    def text(self, ids: Ids) -> str:
        """As `ModelTokens.text`."""
        return self._codec.text(ids)

    def completion_text(self, ids: Ids) -> str:
        """As `ModelTokens.completion_text`."""
        return self._codec.completion_text(ids)

    def encode(self, text: str) -> np.ndarray:
        """As `ModelTokens.encode`."""
        return self._codec.encode(text)

    def check(self, texts: list[str]) -> None:
        """As `ModelTokens.check`."""
        self._codec.check(texts)


def _plain(message: Mapping[str, Any]) -> dict[str, str]:
    """Role and content of a message. ValueError for a content that is no text."""
    content = message.get("content")
    if not isinstance(content, str | None):
        raise ValueError(f"the content of a message must be text (got {type(content).__name__})")
    return {"role": str(message["role"]), "content": content or ""}
