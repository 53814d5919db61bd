"""How the turns of one trajectory are fed and read: in the turn format of Squelch, or in the model's own format.

Which one an environment says (`Environment.whole_turns`). Both feed a first prompt and then only what is new; sampled
ids are kept as they are.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from squelch.actors.formats.choice import squelch_turns
from squelch.actors.formats.protocol import Format, Tools
from squelch.actors.play.codec import ChatCodec
from squelch.envs.contract import Environment
from squelch.envs.episode import Episode, Message


class Speech(Protocol):
    """The turns of one trajectory, in order: `first`, then `said` and `following` for each sampled turn."""

    def first(self, messages: list[Message]) -> np.ndarray:
        """(num_tokens,) int32: the first prompt. Raises ValueError for what the format cannot show."""
        ...

    def said(self, ids: np.ndarray) -> tuple[int, int]:
        """(start, end) of the reasoning in a sampled turn."""
        ...

    def following(self, message: Message, closed: bool) -> np.ndarray:
        """(num_tokens,) int32: what is fed behind that turn. `closed`: whether it ended with its end of turn."""
        ...


class SquelchTurns:
    """Turns of `<think>` and `<answer>`, whose reasoning the codec opens."""

    def __init__(self, codec: ChatCodec) -> None:
        self._codec = codec

    def first(self, messages: list[Message]) -> np.ndarray:
        """As `Speech.first`."""
        return self._codec.first_turn(messages)

    def said(self, ids: np.ndarray) -> tuple[int, int]:
        """As `Speech.said`."""
        return self._codec.reasoning_span(ids)

    def following(self, message: Message, closed: bool) -> np.ndarray:
        """As `Speech.following`."""
        return self._codec.next_turn(message, closed)


class ModelTurns:
    """Turns in a model's own format, with the tools that the task shows."""

    def __init__(self, one: Format, tools: Tools) -> None:
        self._format, self._tools = one, tools
        self._fed = self._sampled = np.zeros(0, np.int32)

    def first(self, messages: list[Message]) -> np.ndarray:
        """As `Speech.first`."""
        self._fed = self._format.render(messages, self._tools)
        return self._fed

    def said(self, ids: np.ndarray) -> tuple[int, int]:
        """As `Speech.said`."""
        self._sampled = ids
        return self._format.parse(ids, self._fed, self._tools).reasoning

    def following(self, message: Message, closed: bool) -> np.ndarray:
        """As `Speech.following`."""
        added = self._format.extend(self._fed, self._sampled, [message], self._tools)
        self._fed = np.concatenate([self._fed, self._sampled, added])
        return added


def speech_of(one: Format, environment: Environment, name: str, episode: Episode) -> Speech:
    """The turns of a trajectory whose episode has started in the environment `name`."""
    if environment.whole_turns:
        return ModelTurns(one, episode.tools)
    return SquelchTurns(squelch_turns(one, name))
