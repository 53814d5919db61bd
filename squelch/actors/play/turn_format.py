"""How the turns of one trajectory are fed and read: in the turn format of Squelch, or in the model's own format.

Which one an environment says (`Environment.whole_turns`). Both feed a first prompt and then only what is new; sampled
ids are kept as they are. Where a model's template removes the reasoning of earlier turns, and `model.keep_reasoning`
lets it, the whole conversation is fed as the template writes it, and a new segment begins (`actors.formats.retention`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from squelch.actors.formats.choice import squelch_turns
from squelch.actors.formats.protocol import Format, Tools
from squelch.actors.formats.retention import CAUSE, ShownReasoning, message_of
from squelch.actors.play.codec import ChatCodec
from squelch.envs.contract import Environment
from squelch.envs.episode import Episode, Message
from squelch.kit.records.content import PlacedPictures


class NextIds(NamedTuple):
    """What is fed next. `ids`: (num_tokens,) int32; `cause`: why a new segment begins with them, empty if none does;
    `pictures`: each with the index in `ids` of its first placeholder."""

    ids: np.ndarray
    cause: str = ""
    pictures: PlacedPictures = ()


class TurnFormat(Protocol):
    """The turns of one trajectory, in order: `first`, then `reasoning_of` and `following` for each sampled turn."""

    def first(self, messages: list[Message]) -> NextIds:
        """The first prompt. Raises ValueError for what the format cannot show."""

    def reasoning_of(self, ids: np.ndarray) -> tuple[int, int]:
        """(start, end) of the reasoning in a sampled turn."""

    def following(self, message: Message, closed: bool) -> NextIds:
        """What is fed behind that turn. `closed`: whether it ended with its end of turn."""

    def quick(self, messages: Sequence[Message], first: bool = False) -> bool:
        """Whether it takes no renderer and about a millisecond to show these messages, as the `first` ones or behind a
        turn (none at the episode's end)."""


class SquelchTurns:
    """Turns of `<think>` and `<answer>`, whose reasoning the codec opens."""

    def __init__(self, codec: ChatCodec) -> None:
        self._codec = codec

    def first(self, messages: list[Message]) -> NextIds:
        """As `TurnFormat.first`."""
        ids, pictures = self._codec.first_fed(messages)
        return NextIds(ids, pictures=pictures)

    def reasoning_of(self, ids: np.ndarray) -> tuple[int, int]:
        """As `TurnFormat.reasoning_of`."""
        return self._codec.reasoning_span(ids)

    def following(self, message: Message, closed: bool) -> NextIds:
        """As `TurnFormat.following`."""
        ids, pictures = self._codec.next_fed(message, closed)
        return NextIds(ids, pictures=pictures)

    def quick(self, messages: Sequence[Message], first: bool = False) -> bool:
        """As `TurnFormat.quick`."""
        return self._codec.quick(messages, first)


class ModelTurns:
    """Turns in a model's own format, with the tools that the task shows."""

    def __init__(self, one: Format, tools: Tools) -> None:
        self._format, self._tools = one, tools
        self._fed = self._sampled = np.zeros(0, np.int32)
        self._messages: list[dict[str, Any]] = []
        self._kept = ShownReasoning(one, tools)

    def first(self, messages: list[Message]) -> NextIds:
        """As `TurnFormat.first`."""
        self._messages = [dict(message) for message in messages]
        return self._whole()

    def reasoning_of(self, ids: np.ndarray) -> tuple[int, int]:
        """As `TurnFormat.reasoning_of`."""
        self._sampled = ids
        found = self._format.parse(ids, self._fed, self._tools)
        if not self._format.keeps_reasoning:
            self._messages.append(message_of(self._format, ids, found))
            self._kept = self._kept.after(self._messages)
        return self._format.reasoning_of(ids, found)

    def following(self, message: Message, closed: bool) -> NextIds:
        """As `TurnFormat.following`."""
        self._messages.append(dict(message))
        if self._kept.removes(self._messages):
            return self._whole(CAUSE)
        added = self._format.extend(self._fed, self._sampled, [message], self._tools)
        self._fed = np.concatenate([self._fed, self._sampled, added])
        return NextIds(added)

    def quick(self, messages: Sequence[Message], first: bool = False) -> bool:
        """As `TurnFormat.quick`: the template may have to be rendered."""
        return False

    def _whole(self, cause: str = "") -> NextIds:
        self._fed, self._kept = self._format.render(self._messages, self._tools), self._kept.begun(self._messages)
        return NextIds(self._fed, cause)


def turn_format_of(one: Format, environment: Environment, name: str, episode: Episode) -> TurnFormat:
    """The turns of a trajectory whose episode has started in the environment `name`."""
    if environment.whole_turns:
        return ModelTurns(one, episode.tools)
    return SquelchTurns(squelch_turns(one, name))
