"""The messages of one trajectory: which segment a request continues, and the ids that it is sampled from. Pure.

A segment is a `Transcript` with the messages that it shows. A request continues the segment whose messages it repeats;
whatever it does not repeat begins a new one. Messages decide, not ids: clients send replies back without their
reasoning, and re-rendered text would hardly ever give the ids that were sampled.

Invariants:

- An assistant's message that equals a reply (content but for white space at its ends, or that and the stop string that
  ended it; calls by id, name and value of the arguments; reasoning only if the client sends it) stands for the ids
  that were sampled. Missing reasoning is no rewrite. All other messages must be equal as they are, and so must the
  tools.
- Of several segments the one with the longest repeated part counts, then the latest.
- A segment is continued in place only behind its last reply, and by one call at a time. Another call with the same
  history begins a new segment (`branch`) with the ids of that history, which are sampled in one segment alone.
- Sampled ids are not encoded again where a format can be continued behind them: a new segment whose history holds
  replies is rendered up to the first of them, and each reply is its sampled ids. Replies that stand before an
  assistant's message of the client's own are rendered with it, as text.
- Where the model's template removes the reasoning of earlier turns (`model.keep_reasoning: template`), a segment ends
  where it does, and every new segment is fed what the template writes for the whole history: nothing is spliced.
- Ids of calls are not part of what is rendered: calls are numbered there in their order.
- Calls that are not trained on are a conversation of their own, with segments, numbers and seeds of its own, so that no
  trained segment depends on them. The two know each other's replies alone, whose ids are never encoded again. A message
  that equals replies of both stands for its own conversation's.

| cause of a new segment | the request |
|---|---|
| `branch` | has a history that another call continues, or has continued, or has all of again |
| `other tools`, `other system message` | has the history of a segment with others |
| `new conversation` | shares with every segment no more than the system message |
| `compaction` | shares a beginning with a segment, and is shorter |
| `template` | continues a history of which the template shows less reasoning than was sampled |
| `history rewritten` | shares a beginning with a segment, and then differs |
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import takewhile
from typing import Any

import numpy as np

from squelch.actors.endpoint.canonical import Message, Request, ToolUse
from squelch.actors.formats.protocol import FOLLOWERS, Format
from squelch.actors.formats.retention import CAUSE, ShownReasoning
from squelch.actors.messages import Completion
from squelch.actors.play.transcript import Transcript


@dataclass(frozen=True)
class Replied:
    """A sampled reply. `stop`: the stop string that ended it."""

    said: Message
    ids: np.ndarray
    stop: str = ""

    def is_meant_by(self, other: Message) -> bool:
        """Whether a client's message stands for this reply."""
        if other.role != "assistant" or other.calls != self.said.calls:
            return False
        content, own = other.content.strip(), self.said.content
        if content != own.strip() and not (self.stop and content == (own + self.stop).strip()):
            return False
        return not other.reasoning.strip() or other.reasoning.strip() == self.said.reasoning.strip()


@dataclass(frozen=True)
class ReplySpan:
    """Where a reply stands: the number of its message, and [start, end) of its ids in the segment. `kept`: what the
    segment shows of reasoning up to there; None where all of it stays."""

    index: int
    start: int
    replied: Replied
    kept: ShownReasoning | None = None

    @property
    def end(self) -> int:
        """Behind its last id."""
        return self.start + len(self.replied.ids)


@dataclass
class Path:
    """A segment. `messages`: all that it shows, up to its last reply; `spans`: the replies among them, of this and of
    other segments, in order; `digest`: of its first prompt; `occurrence`: how many segments before began with the
    same; `busy`: whether a call of it is being sampled."""

    number: int
    cause: str
    tools_key: str
    digest: str
    occurrence: int
    transcript: Transcript = field(default_factory=Transcript)
    messages: list[Message] = field(default_factory=list)
    spans: list[ReplySpan] = field(default_factory=list)
    busy: bool = False

    def common(self, messages: Sequence[Message]) -> int:
        """Number of leading messages that stand for the segment's own."""
        replies = {span.index: span.replied for span in self.spans}
        for index, (own, other) in enumerate(zip(self.messages, messages, strict=False)):
            if not (replies[index].is_meant_by(other) if index in replies else own == other):
                return index
        return min(len(self.messages), len(messages))

    def last_reply(self, within: int) -> ReplySpan | None:
        """The last reply among the first `within` messages."""
        return next((span for span in reversed(self.spans) if span.index < within), None)


@dataclass(frozen=True)
class Placement:
    """Where a request belongs. `path`: the segment that it continues, None for a new one; `prompt`: all ids that it is
    sampled from, of which `num_kept` are the segment's already; `spans`: the replies among them; `kept`: the reasoning
    that they show."""

    request: Request
    path: Path | None
    prompt: np.ndarray
    num_kept: int
    spans: tuple[ReplySpan, ...]
    cause: str
    kept: ShownReasoning | None = None


class Conversation:
    """The segments of one trajectory, in order of their first calls. `beside`: another conversation of the same
    trajectory, whose replies it knows, and which knows its own."""

    def __init__(self, one: Format, beside: Conversation | None = None) -> None:
        self._format = one
        self.paths: list[Path] = []
        self._known: dict[tuple[str, tuple[ToolUse, ...]], list[Replied]] = {}
        self._beside = beside
        if beside is not None:
            beside._beside = self

    # --- where a request belongs ---

    def place(self, request: Request) -> Placement:
        """Where the request belongs; changes nothing. Raises ValueError for what the format cannot show."""
        messages = request.messages
        shared = [(path.common(messages), path) for path in self.paths]
        candidates = [
            (span, path)
            for count, path in shared
            if path.tools_key == request.tools_key and (span := path.last_reply(count)) is not None
        ]
        if candidates:
            span, path = max(candidates, key=lambda pair: (pair[0].index, pair[1].number))
            rest = messages[span.index + 1 :]
            if span.kept is not None and span.kept.removes(self._with_reasoning(messages)):
                return self._of_template(request, CAUSE)
            if self._is_spliced(rest) and (span.kept is None or all(map(self._follows, rest))):
                ids, before = path.transcript.token_ids()[: span.end], path.spans[: path.spans.index(span) + 1]
                prompt, spans = self._behind(request, ids, before)
                if len(spans) > len(before):
                    return Placement(request, None, prompt, 0, spans, self._cause(request, shared))
                if span.index < len(path.messages) - 1 or path.busy:
                    return Placement(request, None, prompt, 0, spans, "branch", span.kept)
                return Placement(request, path, prompt, len(ids), spans, "", span.kept)
        if not self._format.keeps_reasoning:
            return self._of_template(request, self._cause(request, shared))
        prompt, spans = self._rendered(request)
        return Placement(request, None, prompt, 0, spans, self._cause(request, shared))

    def begin(self, placed: Placement) -> Path:
        """The segment of a call that is about to be sampled, made if it is new. Nobody else continues it meanwhile."""
        path = placed.path
        if path is None:
            digest = blake2b(placed.prompt.tobytes(), digest_size=16).hexdigest()
            occurrence = sum(one.digest == digest for one in self.paths)
            path = Path(len(self.paths), placed.cause, placed.request.tools_key, digest, occurrence)
            path.messages = list(placed.request.messages)
            self.paths.append(path)
        path.busy = True
        return path

    def answered(self, placed: Placement, path: Path, completion: Completion, said: Message, stop: str) -> None:
        """Appends a sampled reply to the segment that `begin` gave."""
        replied = Replied(said, completion.token_ids, stop)
        path.transcript.add(placed.prompt[placed.num_kept :].copy())
        start = path.transcript.add_sampled(completion)
        messages = placed.request.messages
        path.messages = [*messages, said]
        kept = placed.kept and placed.kept.after([*self._with_reasoning(messages), *_as_messages([said])])
        path.spans = [*placed.spans, ReplySpan(len(messages), start, replied, kept)]
        for text in {said.content.strip(), (said.content + stop).strip()}:
            self._known.setdefault((text, said.calls), []).append(replied)

    def _cause(self, request: Request, shared: Sequence[tuple[int, Path]]) -> str:
        """Why a request begins a new segment, by the segment with the longest common beginning, then the latest."""
        if not shared:
            return ""
        count, nearest = max(shared, key=lambda pair: (pair[0], pair[1].number))
        system = _leading_system(request.messages)
        if system != _leading_system(nearest.messages):
            return "other system message"
        if count <= system[0] < len(request.messages):
            return "new conversation"
        if nearest.tools_key != request.tools_key:
            return "other tools"
        if count == len(request.messages):
            return "branch"
        return "compaction" if len(request.messages) < len(nearest.messages) else "history rewritten"

    # --- the ids of a history ---

    def _reply(self, message: Message) -> Replied | None:
        """The latest reply of this conversation that a message stands for; if there is none, the other one's."""
        if (own := self._own_reply(message)) is not None or self._beside is None:
            return own
        return self._beside._own_reply(message)

    def _own_reply(self, message: Message) -> Replied | None:
        known = self._known.get((message.content.strip(), message.calls), ())
        return next((one for one in reversed(known) if one.is_meant_by(message)), None)

    def _follows(self, message: Message) -> bool:
        """Whether the message may follow a reply."""
        return message.role in FOLLOWERS or (message.role == "system" and message.role in self._format.followers)

    def _is_spliced(self, rest: Sequence[Message]) -> bool:
        """Whether a reply can be followed by these messages: those that may follow one, and between them replies."""
        follows = False
        for message in rest:
            if self._follows(message):
                follows = True
            elif not follows or message.role != "assistant" or self._reply(message) is None:
                return False
            else:
                follows = False
        return follows

    def _with_reasoning(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """The messages as formats take them, each reply with the reasoning that was sampled, as far as it is known."""
        replies = [self._reply(one) if one.role == "assistant" and not one.reasoning else None for one in messages]
        return _as_messages(
            [
                one if replied is None else replace(one, reasoning=replied.said.reasoning)
                for one, replied in zip(messages, replies, strict=True)
            ]
        )

    def _of_template(self, request: Request, cause: str) -> Placement:
        """A new segment, as the template writes the whole history."""
        messages = self._with_reasoning(request.messages)
        kept = ShownReasoning(self._format, request.tools).begun(messages)
        return Placement(request, None, self._format.render(messages, request.tools), 0, (), cause, kept)

    def _rendered(self, request: Request) -> tuple[np.ndarray, tuple[ReplySpan, ...]]:
        """A whole history: rendered up to the first reply behind which it can be spliced."""
        messages, first, follows = request.messages, len(request.messages), False
        for index in range(len(messages) - 1, 0, -1):
            if self._follows(messages[index]):
                follows = True
            elif not follows or messages[index - 1].role == "assistant" or self._reply(messages[index]) is None:
                break
            else:
                first, follows = index, False
        ids = self._format.render(self._with_reasoning(messages[:first]), request.tools)
        if first == len(messages):
            return ids, ()
        replied = self._reply(messages[first])
        assert replied is not None
        return self._behind(request, np.concatenate([ids, replied.ids]), [ReplySpan(first, len(ids), replied)])

    def _behind(
        self, request: Request, ids: np.ndarray, before: Sequence[ReplySpan]
    ) -> tuple[np.ndarray, tuple[ReplySpan, ...]]:
        """The whole history, continued behind the last of the replies in `before`, with whose ids `ids` end."""
        spans, messages = list(before), request.messages
        while (last := spans[-1]).index < len(messages) - 1:
            start = last.index + 1
            end = next((k for k in range(start, len(messages)) if not self._follows(messages[k])), len(messages))
            shown = _as_messages(messages[start:end], last.replied.said.calls)
            fed = self._format.extend(ids[: last.start], last.replied.ids, shown, request.tools)
            if end == len(messages):
                ids = np.concatenate([ids, fed])
                break
            replied = self._reply(messages[end])
            assert replied is not None
            spans.append(ReplySpan(end, len(ids) + len(fed), replied))
            ids = np.concatenate([ids, fed, replied.ids])
        return ids.astype(np.int32, copy=False), tuple(spans)


def _leading_system(messages: Sequence[Message]) -> tuple[int, tuple[str, ...]]:
    """(number, contents) of the system messages at the beginning."""
    texts = [one.content for one in takewhile(lambda one: one.role == "system", messages)]
    return len(texts), tuple(texts)


def _as_messages(messages: Sequence[Message], calls: Sequence[ToolUse] = ()) -> list[dict[str, Any]]:
    """The messages as formats take them, with the calls numbered. `calls`: those that the results among them answer,
    beside the calls of the messages themselves."""
    known = {call.id: (f"call_{number}", call.name) for number, call in enumerate(calls)}
    found: list[dict[str, Any]] = []
    for one in messages:
        shown: dict[str, Any] = {"role": one.role, "content": one.content}
        for call in one.calls:
            known.setdefault(call.id, (f"call_{len(known)}", call.name))
        if one.calls:
            shown["tool_calls"] = [_as_call(call, known[call.id][0]) for call in one.calls]
        if one.role == "assistant" and one.reasoning:
            shown["reasoning_content"] = one.reasoning
        if one.role == "tool":
            number, name = known.setdefault(one.call_id, (f"call_{len(known)}", one.name))
            shown["tool_call_id"] = number
            if one.name or name:
                shown["name"] = one.name or name
        found.append(shown)
    return found


def _as_call(call: ToolUse, number: str) -> dict[str, Any]:
    return {
        "id": number,
        "type": "function",
        "function": {"name": call.name, "arguments": json.loads(call.arguments)},
    }
