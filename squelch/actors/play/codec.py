"""Codec between an episode's messages and the exact ids that a policy is fed and samples.

Invariants:

- Sampled ids are never decoded and encoded again. An episode's sequence is
  `first_turn | sampled | next_turn | sampled | ...`; each part is encoded once, separately.
- X of a turn is all ids up to and including the opening of the reasoning, `<think>`, which the codec appends. Where an
  environment has a format of its own (`whole_turns`) nothing is appended; unless the template itself opens the
  reasoning, a turn has one if it begins with `<think>`.
- Where there are tools and the template shows none, which is found by giving it one, tools, calls and results are text
  of system, assistant and user (`actors.formats.hermes.as_text`), in `render` and `extend` alike.
- `next_turn` is rendered by the model's own chat template: the template is rendered with a placeholder for the sampled
  text, and what follows it is the next turn. A template whose continuation depends on earlier turns is refused, and
  one that removes the reasoning of earlier turns, unless `model.keep_reasoning` lets it: it would show the trained
  policy other text than it was fed.
- Only the template's own text yields control tokens. The contents of messages are foreign (`squelch/kit/text`): a
  control token that an observation spells is encoded as ordinary text. The markers of the turn format are matched in a
  system message alone, which shows the format to the policy; no part of a prompt is ever parsed for them.
- A picture becomes the ids of its model's configuration: start, one placeholder for each of its tokens, end. Only the
  codec writes them; text that spells them is ordinary text. A picture whose size does not fit is refused.
- Spans are found on bytes, so a token that contains a part of `</think>` belongs to the marker, not to the reasoning.

Only byte-level tokenizers are supported (GPT-2's alphabet: Qwen, Llama 3, and the tiny policy's word pieces), because
their tokens stand for the same bytes in every context. Nothing here waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from squelch.actors.formats import hermes
from squelch.actors.formats.protocol import FOLLOWERS, Ids, Parsed, Tools, ToolsRefused, require_followers
from squelch.actors.formats.tokens import MARKERS, ModelTokens, as_array, as_text, reasoning_span
from squelch.kit.pictures.geometry import PROVEN, Vision, vision_of
from squelch.kit.records.content import PlacedPictures, moved
from squelch.kit.records.pictures import Picture, Shown
from squelch.kit.text.chat_template import REASONING, Part, TemplateRefused
from squelch.kit.text.control_tokens import Piece, foreign_pieces
from squelch.kit.text.shipped_templates import SHIPPED, fitting
from squelch.kit.text.tags import ANSWER_CLOSE, ANSWER_OPEN, THINK_CLOSE, THINK_OPEN
from squelch.kit.untrusted.files import Unreadable

Message = dict[str, Any]
"""`role`, and `content`: text, `kit.records.pictures.Shown` where pictures are allowed, or the pieces of
`hermes.as_text`."""

_CACHED_TURNS = 4096
_QUICK_CHARACTERS = 2000
"""Of messages that are encoded in about a millisecond."""
_SAMPLE = " ".join(["A b  c\n\nd\t<e> & \"f\" 'g' {h} [i] (j) \\ é Ü 漢 1,000.5 | % # $ @ ~ ` ^ * _ -- x"] * 50)
"""A content with which a template is tried: it must come out as it went in."""


def _reply_and(*start: str) -> list[Message]:
    """A conversation of these roles, then a reply of the assistant, then a user's message."""
    return [{"role": role, "content": _SAMPLE} for role in (*start, "assistant", "user")]


_OPENING = ("system", "user")
_REASONING, _ANSWER = "this reasoning stays where it is", "and this answer stays behind it"
_THOUGHT = f"{THINK_OPEN} {_REASONING} {THINK_CLOSE} <answer> {_ANSWER} </answer>"
_TURN, _LATER_TURN = _reply_and(*_OPENING), _reply_and(*_OPENING, "assistant", "user")


class Fed(NamedTuple):
    """What is fed. `ids`: (num_tokens,) int32; `pictures`: each with the index of its first placeholder."""

    ids: np.ndarray
    pictures: PlacedPictures = ()

    @classmethod
    def joined(cls, parts: Sequence[Fed]) -> Fed:
        """The parts one after another."""
        starts = accumulate((len(part.ids) for part in parts), initial=0)
        placed = [moved(part.pictures, start) for part, start in zip(parts, starts, strict=False)]
        return cls(np.concatenate([part.ids for part in parts]), tuple(chain.from_iterable(placed)))


class ChatCodec(ModelTokens):
    """Encodes an episode's messages for the policy in one model folder, and decodes its sampled ids; a `Format`.

    `keeps_reasoning`: as of `Format`. Raises ValueError with the folder and the file if the folder has no fast
    byte-level tokenizer, no chat template, or a template that cannot be continued turn by turn.
    """

    name, reasons, whole_content = "own", True, False

    def __init__(self, model_dir: str | Path, keeps_reasoning: bool = True) -> None:
        super().__init__(model_dir)
        self.keeps_reasoning = keeps_reasoning
        if keeps_reasoning:
            self._require_kept_reasoning()
        self._end_turns_with([self._turn_end()])
        (parts,) = self._template.parts([_TURN[: len(_OPENING)]])
        self.template_opens = not _opening_of_reasoning(parts)
        """Whether the chat template itself ends a prompt with the opening of the reasoning."""
        self._between = lru_cache(maxsize=_CACHED_TURNS)(self._encode_between)

    @cached_property
    def vision(self) -> Vision | None:
        """How the model is shown pictures; None if it has no proven vision tower. Raises ValueError for ids of pictures
        that the tokenizer does not keep apart from text."""
        found = vision_of(self._dir)
        if found is not None:
            found.require_apart(self._encoder.control)
        return found

    # --- what is fed ---

    def first_fed(self, messages: list[Message], opening: bool = True) -> Fed:
        """As `first_turn`, of messages that may show pictures. Raises ValueError for one that the model cannot be
        shown."""
        (parts,) = self._template.parts([_described(messages)])
        return self._fed(parts, messages, opening)

    def next_fed(self, message: Message, closed: bool, opening: bool = True) -> Fed:
        """As `next_turn`, of a message that may show pictures. Raises ValueError for one that the model cannot be
        shown."""
        if isinstance(message["content"], str):
            return Fed(self.next_turn(message, closed, opening))
        ids, pictures = self._fed_between(message, opening)
        return Fed(ids[1:], moved(pictures, -1)) if closed else Fed(ids, pictures)

    def quick(self, messages: Sequence[Message], first: bool) -> bool:
        """Whether `first_fed` of these messages, or `next_fed` of the one (or none) behind a turn, takes about a
        millisecond and no renderer."""
        texts = [message["content"] for message in messages]
        if not all(isinstance(text, str) for text in texts) or sum(map(len, texts)) > _QUICK_CHARACTERS:
            return False
        return not messages or self._template.knows([*(() if first else _TURN[:-1]), *messages])

    def first_turn(self, messages: list[Message], opening: bool = True) -> np.ndarray:
        """(num_tokens,) int32: the rendered messages, the generation prompt and, with `opening`, the opening of the
        reasoning."""
        return self.first_fed(messages, opening).ids

    def next_turn(self, message: Message, closed: bool, opening: bool = True) -> np.ndarray:
        """(num_tokens,) int32: the ids that are fed between two sampled turns; `opening` as in `first_turn`.

        `closed`: whether the sampled turn ended with one of `stop_ids`, which replaces the template's end of turn. If
        it did not, the ids begin with the end of turn.
        """
        ids = self._between(message["role"], message["content"], opening)
        return ids[1:] if closed else ids

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Tools = None) -> np.ndarray:
        """As `Format.render`: nothing is added to what the template writes."""
        shown, parts = self._rendered(messages, tools)
        return self._encode_parts(parts, [message for _, message in shown], False)

    def shown_reasoning(self, messages: Sequence[Mapping[str, Any]], tools: Tools = None) -> frozenset[int]:
        """As `Format.shown_reasoning`. Arguments and ids of calls decide nothing there and are left out, so that a
        conversation of known roles starts no process for its template."""
        shown, parts = self._rendered([_without_arguments(message) for message in messages], tools)
        found = [part - REASONING for part in parts if isinstance(part, int) and part >= REASONING]
        return frozenset(shown[place][0] for place in found)

    def _rendered(
        self, messages: Sequence[Mapping[str, Any]], tools: Tools
    ) -> tuple[list[tuple[int, dict[str, Any]]], tuple[Part, ...]]:
        """The messages that the template shows (`_given`), and its parts."""
        shown, schemas = self._given(messages, tools)
        conversation = _described([message for _, message in shown])
        try:
            (parts,) = self._template.parts([conversation], tools=schemas)
        except TemplateRefused as error:
            if schemas:
                self._template.parts([conversation])  # raises where the messages are at fault
                raise ToolsRefused(str(error)) from error
            raise
        return shown, parts

    def given(self, messages: Sequence[Mapping[str, Any]], tools: Tools) -> tuple[list[dict[str, Any]], Tools]:
        """As `ModelTokens.given`: where the template shows no tools they are text, as calls and results are."""
        shown, schemas = self._given(messages, tools)
        return _described([message for _, message in shown]), schemas

    def _given(
        self, messages: Sequence[Mapping[str, Any]], tools: Tools
    ) -> tuple[list[tuple[int, dict[str, Any]]], list[Any] | None]:
        """As `given`, each message with its index, and own text apart from foreign text."""
        shown, schemas = self._checked(messages), self.checked_tools(tools)
        if schemas and not self._template.shows_tools:
            return hermes.as_text(shown, schemas), None
        return list(enumerate(shown)), schemas

    def extend(self, fed: Ids, sampled: Ids, messages: Sequence[Mapping[str, Any]], tools: Tools = None) -> np.ndarray:
        """As `Format.extend`: what the template writes behind a reply, whatever the reply was."""
        closed = len(sampled) > 0 and int(sampled[-1]) in self.stop_ids
        require_followers(messages, (*FOLLOWERS, "system"))
        before = _TURN[:-1]
        given, schemas = self._given([*before, *messages], tools)
        shown = [message for _, message in given[len(before) :]]
        if [message["role"] for message in shown] == ["user"]:
            return self.next_turn(shown[0], closed, False)
        conversation = _described([message for _, message in given])
        (parts,) = self._template.parts([conversation], tools=schemas)
        ids = self._encode_parts(self._after(parts, conversation, len(before) - 1), shown, False)
        return ids[1:] if closed else ids

    @cached_property
    def followers(self) -> tuple[str, ...]:
        """As `Format.followers`: system messages too, where the template writes them behind a turn as they stand.
        Raises Unreadable if the machine's load kept the template from being rendered."""
        system, user = {"role": "system", "content": "x"}, {"role": "user", "content": "x"}
        try:
            for messages in ([system, user], [user, system]):
                self.extend((), self.stop_ids[:1], messages)
        except Unreadable:  # the machine's load decided, and may not the next time
            raise
        except ValueError:
            return FOLLOWERS
        return (*FOLLOWERS, "system")

    def _checked(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The messages, each with a text as its content. ValueError for a content that is none, and for other fields,
        which the template writes as its own text, that spell a control token."""
        found = []
        for message in messages:
            content = message.get("content")
            if not isinstance(content, str | None):
                raise ValueError(f"the content of a message must be text (got {type(content).__name__})")
            texts = ("content", "reasoning_content")
            others = {key: value for key, value in message.items() if key not in texts or not isinstance(value, str)}
            self.refuse_control(others, "a message's other fields hold")
            found.append({**message, "content": content or ""})
        return found

    def begins_inside(self, fed: Ids) -> bool:
        """As `Format.begins_inside`."""
        return self.template_opens

    # --- what was sampled ---

    def reasoning_span(self, ids: Ids, opened: bool = True) -> tuple[int, int]:
        """(start, end) of the reasoning among the sampled ids, between `<think>` and `</think>`
        (`tokens.reasoning_span`)."""
        return reasoning_span([self.token_bytes(int(index)) for index in ids], opened, THINK_OPEN, THINK_CLOSE)

    def parse(self, sampled: Ids, fed: Ids = (), tools: Tools = None) -> Parsed:
        """As `Format.parse`. A turn has reasoning if it begins with `<think>`, or if the template opened it."""
        span = self.reasoning_span(sampled, self.template_opens)
        text = self.written(sampled)
        if self.template_opens or text.lstrip().startswith(THINK_OPEN):
            text = text.partition(THINK_CLOSE)[2]
        content, calls = hermes.tool_calls(text)
        return Parsed(span, content.strip(), calls)

    def closing_end(self, ids: Ids) -> int | None:
        """Number of ids up to the one that completes the closing of the reasoning; None if they do not close it."""
        pieces = [self.token_bytes(int(index)) for index in ids]
        return _completing(pieces, THINK_CLOSE, 0)

    def answer_end(self, ids: Ids) -> int | None:
        """Number of ids up to the one that completes the answer, among the ids sampled from the closing of the
        reasoning on; None if they hold no complete answer (`envs.format`)."""
        pieces = [self.token_bytes(int(index)) for index in ids]
        text = b"".join(pieces)
        opened = text.find(ANSWER_OPEN.encode(), max(text.find(THINK_CLOSE.encode()), 0))
        return None if opened < 0 else _completing(pieces, ANSWER_CLOSE, opened)

    # --- the template ---

    def _require_kept_reasoning(self) -> None:
        """Raises ValueError if the template leaves the reasoning of earlier turns out, or refuses the conversation."""
        conversation = [dict(one) for one in _LATER_TURN]
        for one in conversation:
            one["content"] = _THOUGHT if one["role"] == "assistant" else "next"
        try:
            (text,) = self._template.render([conversation])
        except TemplateRefused:
            return  # `_turn_end` says which messages it refuses
        if text.count(_REASONING) < text.count(_ANSWER):
            raise ValueError(
                f"the chat template of {self._dir} removes the reasoning of earlier turns, so a later turn would be "
                f"shown other text than the policy was fed; {_remedy(self._template.source)}"
            )

    def _turn_end(self) -> int:
        """The id with which the template ends an assistant turn. Raises ValueError if the template shows contents
        otherwise than as given, or if its continuation depends on earlier turns."""
        opening = _TURN[: len(_OPENING)]
        try:
            _, turn, later = self._template.parts([opening, _TURN, _LATER_TURN], compare=True)
        except TemplateRefused as error:
            raise ValueError(
                f"{error}; it must take a system message followed by user and assistant in turn: "
                f"{_remedy(self._template.source)}"
            ) from error
        after = self._after(turn, _TURN, len(_TURN) - 2)
        if after != (deep := self._after(later, _LATER_TURN, len(_LATER_TURN) - 2)):
            raise ValueError(
                f"the chat template of {self._dir} continues a turn differently depending on earlier turns "
                f"({_shown(after)} after one turn, {_shown(deep)} after two); it must not"
            )
        first = int(self._encode_parts(after, [{"role": "user", "content": "next"}])[0])
        if first not in self._encoder.control:
            raise ValueError(
                f"the chat template of {self._dir} ends an assistant turn with {_shown(after)[:12]!r}, which is not an "
                "added token of tokenizer.json; it must be one token, such as <|im_end|>, so that generation can stop "
                "there"
            )
        return first

    def _after(self, parts: Sequence[Part], messages: Sequence[Mapping[str, Any]], reply: int) -> list[Part]:
        """The text that the template writes after the message `reply`; 0 stands for the one behind it."""
        later = range(reply + 1, len(messages))
        after = list(parts[parts.index(reply) + 1 :]) if reply in parts else []
        foreseen = not any(isinstance(part, int) and part not in later for part in after)
        shown = all(index in after or not messages[index]["content"].strip() for index in later)
        if not (after and foreseen and shown):
            raise ValueError(
                f"the chat template of {self._dir} does not render an assistant turn followed by a "
                f"{messages[-1]['role']} turn as they are given, so an episode cannot be continued turn by turn"
            )
        return [part if isinstance(part, str) else part - reply - 1 for part in after]

    def _encode_between(self, role: str, content: str, opening: bool) -> np.ndarray:
        return self._fed_between({"role": role, "content": content}, opening).ids

    def _fed_between(self, message: Message, opening: bool) -> Fed:
        conversation = _described([*_TURN[:-1], message])
        (parts,) = self._template.parts([conversation])
        return self._fed(self._after(parts, conversation, len(conversation) - 2), [message], opening)

    def _encode_parts(
        self, parts: Sequence[Part], messages: Sequence[Mapping[str, Any]], opening: bool = True
    ) -> np.ndarray:
        """The ids of a rendered conversation of text, whose parts stand for `messages`; with `opening`, that of the
        reasoning is among them."""
        return self._fed(parts, messages, opening).ids

    def _fed(self, parts: Sequence[Part], messages: Sequence[Mapping[str, Any]], opening: bool) -> Fed:
        ids: list[int] = []
        pieces: list[Piece] = []
        pictures: list[tuple[int, Picture]] = []
        for part in [*parts, *(_opening_of_reasoning(parts) if opening else ())]:
            if isinstance(part, str):
                pieces.append((part, False))
                continue
            message, field = messages[part % REASONING], "content" if part < REASONING else "reasoning_content"
            markers = MARKERS if message["role"] == "system" else ()
            for one in _stripped(message[field]):
                if not isinstance(one, Picture):
                    pieces += foreign_pieces(as_text(one[0]), markers) if one[1] else [one]
                    continue
                ids += self._encoder.encode(pieces)
                pictures.append((len(ids) + 1, one))
                ids += self._picture_ids(one)
                pieces = []
        return Fed(as_array(ids + self._encoder.encode(pieces)), tuple(pictures))

    def _picture_ids(self, picture: Picture) -> list[int]:
        if self.vision is None:
            raise ValueError(
                f"the model in {self._dir} has no vision tower, so it cannot be shown a picture; models that can: "
                f"{', '.join(PROVEN)}"
            )
        return self.vision.placeholders(*picture.size)


def _described(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages with text in place of each content that is made of parts, for the template, which asks only where
    contents stand."""
    return [{**one, "content": _text_of(one["content"])} for one in messages]


def _text_of(content: str | Shown | tuple[Piece, ...]) -> str:
    """A content as one text; a word for one that shows pictures."""
    if isinstance(content, Shown):
        return "shown"
    return content if isinstance(content, str) else "".join(text for text, _ in content)


def _stripped(content: str | Shown | tuple[Piece, ...]) -> tuple[Piece | Picture, ...]:
    """The pieces and pictures of a content without white space at its ends; text of its own has none there."""
    if isinstance(content, str):
        return ((content.strip(), True),)
    if isinstance(content, tuple):
        return content
    first, *middle = content.parts
    last = middle.pop() if middle else ""
    ends = first.lstrip() if isinstance(first, str) else first, last.rstrip() if isinstance(last, str) else last
    return tuple(one if isinstance(one, Picture) else (one, True) for one in (ends[0], *middle, ends[1]))


def _without_arguments(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message whose calls have no arguments and whose ids are all alike."""
    found = dict(message)
    if message.get("tool_calls"):
        names = [(call.get("function") or call).get("name") for call in message["tool_calls"]]
        found["tool_calls"] = [
            {"id": "call", "type": "function", "function": {"name": name, "arguments": {}}} for name in names
        ]
    return found | ({"tool_call_id": "call"} if "tool_call_id" in message else {})


def _completing(pieces: Sequence[bytes], marker: str, start: int) -> int | None:
    """Number of tokens, of which `pieces` are the bytes, up to the one that completes the first `marker` at or after
    byte `start`; None if there is none."""
    found = b"".join(pieces).find(marker.encode(), start)
    if found < 0:
        return None
    ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
    return int(np.searchsorted(ends, found + len(marker))) + 1


def _opening_of_reasoning(parts: Sequence[Part]) -> tuple[str, ...]:
    """The opening of the reasoning, which follows the generation prompt unless the template has written it."""
    last = parts[-1] if parts else ""
    return () if isinstance(last, str) and last.rstrip().endswith(THINK_OPEN) else (THINK_OPEN,)


def _remedy(source: str) -> str:
    """Advice on a setting that replaces the template `source`."""
    name = fitting(source)
    fits = f"={name}, which Squelch ships and which fits this model" if name else f" (shipped are {', '.join(SHIPPED)})"
    return f"set model.chat_template{fits}"


def _shown(parts: Sequence[Part]) -> str:
    """Parts in an error message, `...` for a content."""
    return "".join(part if isinstance(part, str) else "..." for part in parts)
