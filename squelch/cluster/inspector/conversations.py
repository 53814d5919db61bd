"""Trajectories in a model's own format, as conversations: messages, calls of tools with their results, and what a new
segment shares with an earlier one.

Everything is read from the ids by the run's format (`actors.formats`), which the run keeps beside its tokenizer:
sampled ids by its parser, fed ids by their control tokens.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from squelch.actors.formats.fed_messages import FedMessage, fed_messages
from squelch.cluster.inspector.texts import Pieces, shown
from squelch.kit.records.records import Trajectory
from squelch.kit.records.shared_prefix import common_length

if TYPE_CHECKING:
    from squelch.actors.formats.choice import AnyFormat
    from squelch.cluster.runs.folder import RunFolder


@dataclass(frozen=True)
class MessageView:
    """A fed message. `role`: empty if the format does not say it; `of`: the tool whose result it is; `again`: it equals
    one of the segment that this one departs from."""

    role: str
    text: Markup
    of: str = ""
    again: bool = False


@dataclass(frozen=True)
class CallView:
    """A call of a tool as the policy wrote it. `error`: why it is none."""

    name: str
    arguments: Markup
    error: str


@dataclass(frozen=True)
class Departure:
    """Where a segment departs from an earlier one: `segment` counts from 1; `tokens`, `messages`: what both begin with,
    none of it sampled in this one."""

    segment: int
    tokens: int
    messages: int


@dataclass(frozen=True)
class ConversationTurn:
    """What a turn adds to a conversation: the messages fed before it, the calls in it, and the departure of the segment
    that begins with it."""

    messages: tuple[MessageView, ...]
    calls: tuple[CallView, ...]
    departure: Departure | None = None


class Conversations:
    """Reads trajectories as conversations, in the format of a run that has one of its own."""

    def __init__(self, one: AnyFormat, pieces: Pieces) -> None:
        self._format, self._pieces = one, pieces

    def turns(self, trajectory: Trajectory) -> list[ConversationTurn]:
        """What each turn adds."""
        found, before, last, names = [], -1, 0, list[str]()
        for number, turn in enumerate(trajectory.turns):
            segment, departure = trajectory.segment_of(number), None
            start, _ = trajectory.spans[segment]
            if segment != before:
                last, names = start, []
                departure = self._departure(trajectory, segment, turn.sample_start) if segment else None
            ids = trajectory.token_ids
            fed = self._fed(ids[last : turn.sample_start], int(ids[last - 1]) if last > start else None)
            again = departure.messages if departure else 0
            said = self._format.parse(ids[turn.sample_start : turn.sample_end], ids[start : turn.sample_start])
            calls = tuple(
                CallView(call.name, shown(call.arguments or call.raw), call.error) for call in said.tool_calls
            )
            found.append(ConversationTurn(tuple(_views(fed, names, again)), calls, departure))
            last, before, names = turn.sample_end, segment, [call.name for call in said.tool_calls]
        return found

    def _fed(self, ids: np.ndarray, before: int | None = None) -> list[FedMessage]:
        return fed_messages(ids.tolist(), self._pieces.added, self._pieces.text, before)

    def _departure(self, trajectory: Trajectory, segment: int, sampled: int) -> Departure:
        """The earlier segment with which this one shares most ids, the latest of several. `sampled`: its first sampled
        id."""
        spans = trajectory.spans
        own = trajectory.token_ids[spans[segment][0] : sampled]
        common = [common_length([own, trajectory.token_ids[slice(*span)]]) for span in spans[:segment]]
        tokens = max(common)
        whole = sum(message.end <= tokens for message in self._fed(own))
        return Departure(segment - common[::-1].index(tokens), tokens, whole)


def _views(fed: Sequence[FedMessage], names: Sequence[str], again: int) -> list[MessageView]:
    """`names`: the tools that the turn before called, whose results come in their order."""
    results = iter(names)
    return [
        MessageView(one.role, shown(one.text), next(results, "") if one.role == "tool" else "", number < again)
        for number, one in enumerate(fed)
    ]


class OwnFormat:
    """The format of a run, opened once; none for a run of Squelch's turns. `problem`: why it could not be opened."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder, self._lock = folder, Lock()
        self._opened: Conversations | None = None
        self.problem = ""

    def conversations(self, pieces: Pieces) -> Conversations | None:
        """The reader of the run's trajectories."""
        with self._lock:
            if self._opened is None and not self.problem and (files := self._folder.format_files()):
                self._open(files, pieces)
            return self._opened

    def _open(self, files: dict[str, str], pieces: Pieces) -> None:
        from squelch.actors.formats.portable import open_portable

        tokenizer = self._folder.tokenizer()
        if tokenizer is None:
            return
        with tempfile.TemporaryDirectory(prefix="squelch-format-") as name:
            try:
                self._opened = Conversations(open_portable(files, tokenizer, Path(name)), pieces)
            except ValueError as error:
                self.problem = f"messages and calls are not shown apart: {error}"
