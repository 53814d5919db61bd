"""The turns of a row's completion: what was fed before each, what was sampled in it, and where it is to be cut.

- **Ids** are used unchanged. A mask says what was sampled; without one the chat template's own text between turns does.
- **Text** is divided where the template's text between turns stands (`separators.py`). Each turn is encoded whole and
  then cut, because the policy sampled it whole. A prompt that is text is taken as already rendered; control tokens that
  a trainer left out of it are put back where the template certainly wrote them, and so is what the tokenizer puts
  before a text (`<s>`).
- **Messages** are rendered by the template. If a parser has moved a turn's reasoning out of its content, the template
  writes the turn as the policy did. Calls of tools and their outputs are fed to later turns, and are no part of any.

Only the chat template writes control tokens in messages (`messages.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple

from squelch.kit.api.completions import (
    CALLS_ONLY,
    EMPTY,
    HALF_CHARACTER,
    NO_TOKENS,
    SUMMARY,
    UNCLOSED,
    UNREADABLE,
    Spans,
    Where,
    calls_tools,
    cut,
    ends_in,
    ids_before,
    markers_of,
    spans_of,
    split_ids,
)
from squelch.kit.api.encoding import RowEncoder
from squelch.kit.api.messages import (
    BadSample,
    Conversation,
    MessageRenderer,
    Messages,
    Spoken,
    is_summarised,
    plain,
    spoken,
)
from squelch.kit.api.separators import Separators
from squelch.kit.text.control_tokens import Piece, foreign_pieces

Turns = Literal["first", "all"]

Row = dict[str, Any]
"""One sample; None, or no key, for what it lacks:

    prompt            text as fed to the model, or messages (of any role, with `tool_calls`)
    completion        text, or messages: those of role `assistant` are turns, the others (`tool`, `user`) stand between
                      them. A message's reasoning is in its `content` between the markers, under `reasoning_content`,
                      `reasoning` or `thinking`, or a block of its `content`; its `tool_calls` are no answer
    reasoning         text of the reasoning alone
    tools             list of JSON schemas, which the chat template shows in X
    prompt_ids, reasoning_ids, answer_ids, completion_ids    lists of token ids
    completion_mask   one entry for each of `completion_ids`: 1 where the policy sampled, 0 for what it was fed between
                      its turns (TRL's `tool_mask`, others' `response_mask`)
    turn              number of the turn in its trajectory, from 0, if each turn is a row with a prompt of its own
    prompt_id         rows of one id have one prompt
    pictures          those that the prompt shows, in order (`squelch.kit.api.pictures.Given`)
"""

_TAIL = 32
"""Ids whose text shows whether a prompt opens a reasoning."""
LATER = "a later turn whose prompt is not known"
FED_ROLES = ("user", "human", "system", "developer", "tool", "function", "ipython", "environment")


class SampledTurn(NamedTuple):
    """One turn. `fed`: the ids before it; `ids`: those sampled; `spans`: positions in `ids`, without an answer that the
    tokenizer cannot express; `text`: of the reasoning; `calls`: whether it calls tools."""

    fed: list[int]
    ids: list[int]
    spans: Spans
    text: str
    calls: bool


class Templates:
    """The chat template of the model, if it is needed. `make`: makes what renders messages; ValueError if nothing
    can."""

    def __init__(self, make: Callable[[], MessageRenderer], special: Sequence[str]) -> None:
        self._make, self._special = make, special
        self._renderer: MessageRenderer | None = None
        self._separators: list[Separators | None] = []

    def renderer(self) -> MessageRenderer:
        """What renders messages. ValueError if nothing can."""
        self._renderer = self._renderer or self._make()
        return self._renderer

    def separators(self) -> Separators | None:
        """The template's texts around turns, None without a template."""
        if not self._separators:
            try:
                self._separators.append(Separators(self.renderer().template, self._special))
            except ValueError:
                self._separators.append(None)
        return self._separators[0]


class TurnReader:
    """Finds the turns of `rows`: (number, row). `where`: where their reasonings lie; `which`: those that are samples;
    `tools`: JSON schemas for rows without their own. Raises BadSample if messages cannot be rendered."""

    def __init__(
        self,
        encoder: RowEncoder,
        where: Where,
        templates: Templates,
        which: Turns,
        tools: list[Any] | None,
        rows: Sequence[tuple[int, Row]],
    ) -> None:
        self._encoder, self._where, self._templates = encoder, where, templates
        self._markers = markers = markers_of(where)
        self._which, self._tools = which, tools
        self.counted: Counter[str] = Counter()
        """Of the file: its turns, `total`, and those `later` ones that are no samples."""
        self._noted: Counter[str] = Counter()
        self._control: dict[str, Counter[str]] = {}
        rows = [(number, row) for number, row in rows if not self._is_later(row)]
        self._rendered = self._render(rows)
        self._opening: list[Piece] = [(markers[0], False)] if markers and self._lacks_opening(rows, markers[0]) else []

    def of(self, number: int, row: Row) -> Iterator[SampledTurn | str]:
        """The turns of a row that are samples, or the reason why one cannot be scored, in order."""
        if self._is_later(row):
            self.counted += Counter(total=1, later=1)
            return
        if row.get("completion_ids") is not None:
            yield from self._of_ids(number, row)
        elif row.get("reasoning_ids") is not None or row.get("reasoning") is not None:
            self.counted["total"] += 1
            yield self._of_reasoning(number, row)
        elif isinstance(row["completion"], str):
            yield from self._of_text(number, row)
        else:
            yield from self._of_messages(number, row)

    def _is_later(self, row: Row) -> bool:
        """Whether a row is a later turn, and no sample."""
        return self._which == "first" and bool(row.get("turn"))

    # --- the forms of a row ---

    def _of_reasoning(self, number: int, row: Row) -> SampledTurn | str:
        """The only turn of a row whose reasoning is cut out already."""
        fed = self._fed(number, row)
        if row.get("reasoning_ids") is None and not row["reasoning"].strip():
            return EMPTY
        if row.get("reasoning_ids") is None:
            if UNREADABLE in row["reasoning"]:
                return HALF_CHARACTER
            ids = self._encoder.encode(number, [(row["reasoning"], False)])
            return SampledTurn(fed, ids, Spans(0, len(ids), None), row["reasoning"], False)
        ids, answer = list(row["reasoning_ids"]), list(row.get("answer_ids") or [])
        spans = Spans(0, len(ids), len(ids) + len(answer) if answer else None)
        return SampledTurn(fed, ids + answer, spans, self._encoder.decode(ids), False) if ids else EMPTY

    def _of_ids(self, number: int, row: Row) -> Iterator[SampledTurn | str]:
        fed, sampled = self._fed(number, row), list(row["completion_ids"])
        stretches = self._stretches(number, sampled, row.get("completion_mask"))
        for start, end in self._chosen(stretches):
            ids = self._encoder.without_end(sampled[start:end])
            before = self._encoder.decode([*fed[-_TAIL:], *sampled[max(0, start - _TAIL) : start]][-_TAIL:])
            spans = split_ids(ids, self._encoder.decode, self._where, self._is_opened([(before, False)]))
            if isinstance(spans, str):
                yield spans
                continue
            reasoning = self._encoder.decode(ids[spans.start : spans.end])
            calls = calls_tools(self._encoder.decode(ids))
            yield SampledTurn([*fed, *sampled[:start]], ids, spans, reasoning, calls)

    def _stretches(self, number: int, ids: list[int], mask: Sequence[Any] | None) -> list[tuple[int, int]]:
        """(start, end) of each turn in a completion's ids."""
        if mask is not None:
            if len(mask) != len(ids):
                raise BadSample(
                    f"{self._encoder.row(number)}: the mask has {len(mask)} entries for {len(ids)} ids of the "
                    "completion; it needs one for each"
                )
            edges = [
                k for k in range(len(ids) + 1) if (k > 0 and bool(mask[k - 1])) != (k < len(ids) and bool(mask[k]))
            ]
            return list(zip(edges[::2], edges[1::2], strict=True))
        inner = self._encoder.without_end(ids)
        separators = self._templates.separators() if self._encoder.special.keys() & set(inner) else None
        if separators is None:
            return [(0, len(ids))]
        text = self._encoder.decode(ids)
        end_of = ends_in(ids, self._encoder.decode)
        spans = separators.divide(text).spans
        return [(ids_before(start, len(ids), end_of), ids_before(end, len(ids), end_of)) for start, end in spans]

    def _of_text(self, number: int, row: Row) -> Iterator[SampledTurn | str]:
        text, separators, after = row["completion"], self._templates.separators(), list[int]()
        spans, between = separators.divide(text) if separators else ([(0, len(text))], [])
        for place, (start, end) in enumerate(self._chosen(spans)):
            turn: list[Piece] = [(text[start:end], False)]
            before = between[place - 1] if place else self._shown(number, row)
            said = self._cut(turn, False, self._is_opened(before))
            yield said if isinstance(said, str) else said._replace(fed=[*self._fed(number, row), *after])
            if place < len(between) and self._which == "all":
                after = [*after, *self._encoder.encode(number, turn), *self._encoder.encode(number, between[place])]

    def _of_messages(self, number: int, row: Row) -> Iterator[SampledTurn | str]:
        completion: Messages = row["completion"]
        for place in self._chosen(_places(completion)):
            parts, asked = spoken(completion[place]), self._asked(number, row, place)
            self._noted["calls"] += parts.calls and asked is not None and not asked.tools
            if asked is None and place:
                yield LATER
            elif is_summarised(completion[place]):
                yield SUMMARY
            elif parts.calls and not parts.reasoning and not parts.content.strip():
                yield CALLS_ONLY
            elif parts.reasoning.strip() and not parts.content.strip() and not parts.calls:
                yield UNCLOSED  # parsers move a reasoning that was cut out of the content too
            else:
                before = self._rendered[asked.key] if asked else self._shown(number, row)
                turn = self._written(number, row, place, parts)
                said = self._cut(turn, parts.calls, self._is_opened(before))
                if not isinstance(said, str):
                    later = self._encoder.encode(number, self._rendered[asked.key]) if asked and place else None
                    said = said._replace(fed=later or self._fed(number, row))
                yield said

    def _written(self, number: int, row: Row, place: int, said: Spoken) -> list[Piece]:
        """The pieces of a turn as the policy wrote it, as far as that is known."""
        markers = self._markers
        if not said.reasoning or markers is None:
            return foreign_pieces(said.reasoning + said.content, markers or ())
        asked = self._asked(number, row, place)
        if asked is not None:
            pieces = self._rest(self._rendered[self._replied(number, row, place, said).key], self._rendered[asked.key])
            text = "".join(text for text, _ in pieces)
            spans = spans_of(text, markers, self._is_opened(self._rendered[asked.key]))
            if not isinstance(spans, str) and text[spans.start : spans.end].strip() == said.reasoning.strip():
                return pieces
        self._noted["joined"] += 1
        opening = "" if asked is not None and self._is_opened(self._rendered[asked.key]) else markers[0]
        return foreign_pieces(f"{opening}{said.reasoning}{markers[1]}{said.content}", markers)

    def _rest(self, whole: list[Piece], before: list[Piece]) -> list[Piece]:
        """The pieces after those that were fed, without the end of the turn; empty if the template changed the
        latter."""
        fed = "".join(text for text, _ in before)
        if not "".join(text for text, _ in whole).startswith(fed):
            return []
        left, pieces = len(fed), list[Piece]()
        for text, foreign in whole:
            pieces.append((text[left:], foreign))
            left = max(0, left - len(text))
        text, foreign = pieces[-1]
        bare = text.rstrip()
        while not foreign and (name := next((n for n in self._encoder.special.values() if bare.endswith(n)), "")):
            text = bare = bare.removesuffix(name)
        return [*pieces[:-1], (text, foreign)]

    def _cut(self, pieces: list[Piece], calls: bool, opened: bool) -> SampledTurn | str:
        """A turn's text, encoded whole and cut between its tokens. What was fed is left to the caller, who knows
        whether it `opened` the reasoning."""
        text = "".join(text for text, _ in pieces)
        spans = spans_of(text, self._where, opened)
        if isinstance(spans, str):
            return spans
        ids, ends = self._encoder.encode_at(pieces)
        ids = self._encoder.without_end(ids)
        found = cut(spans, len(ids), ends.__getitem__)
        if not self._encoder.decode(ids[found.start : found.end]).strip():
            return EMPTY
        if not self._encoder.knows(ids[: found.end]):
            return NO_TOKENS
        if UNREADABLE in text[spans.start : spans.end]:
            return HALF_CHARACTER
        if found.answer_end is not None and (
            UNREADABLE in text[spans.end : spans.answer_end]
            or not self._encoder.knows(ids[found.end : found.answer_end])
        ):
            found = found._replace(answer_end=None)
        return SampledTurn([], ids, found, text[spans.start : spans.end], calls or calls_tools(text))

    def asked(self, rows: Sequence[tuple[int, Row]]) -> Iterator[str]:
        """The texts of the rows' prompts, without those of later turns that are no samples."""
        for _, row in rows:
            if self._is_later(row):
                continue
            if row.get("prompt_ids") is not None:
                yield self._encoder.decode(row["prompt_ids"])
            else:
                prompt = row["prompt"]
                texts = [prompt] if isinstance(prompt, str) else [plain(one).get("content") or "" for one in prompt]
                yield "\n".join(texts)

    def control_tokens(self) -> Counter[str]:
        """The control tokens in the distinct prompts that are text, apart from the markers."""
        return sum(self._control.values(), Counter[str]())

    def notes(self) -> tuple[str, ...]:
        """What was put into the text of the rows or could not be, in words."""
        said = {
            "restored": "{} prompts are text without control tokens; those of the chat template were put back",
            "bare": "{} prompts are text without the control tokens that the chat template writes: if the trainer left "
            "them out of its log, the policy read another prompt",
            "calls": "{} turns call tools, and no JSON schemas are given (`tools`): the policy read another prompt",
            "joined": "{} turns were joined from reasoning and content, because the chat template has no place for a "
            f"reasoning between {' and '.join(self._markers or ())}",
        }
        found = [text.format(self._noted[name]) for name, text in said.items() if self._noted[name]]
        if self._opening:
            found.append(
                f"neither prompts nor completions open a reasoning; {self._opening[0][0]} was added to prompts"
            )
        return tuple(found)

    def _chosen(self, turns: Sequence[Any]) -> Sequence[Any]:
        """The turns that are samples; all are counted."""
        chosen = turns if self._which == "all" else turns[:1]
        self.counted += Counter(total=len(turns), later=len(turns) - len(chosen))
        return chosen

    # --- what is fed ---

    def _shown(self, number: int, row: Row) -> list[Piece]:
        """The text before the first turn, of ids its end."""
        if row.get("prompt_ids") is not None:
            return [(self._encoder.decode(row["prompt_ids"][-_TAIL:]), False), *self._opening]
        asked = self._asked(number, row, 0)
        return [*(self._rendered[asked.key] if asked else [(row["prompt"], False)]), *self._opening]

    def _is_opened(self, before: Sequence[Piece]) -> bool:
        """Whether what stands before a turn opens its reasoning."""
        return self._markers is not None and _opens(before, self._markers[0])

    def _fed(self, number: int, row: Row) -> list[int]:
        """The ids before the first turn."""
        opening = [] if _cut_already(row) else self._opening
        if row.get("prompt_ids") is not None:
            return [*row["prompt_ids"], *(self._encoder.encode(number, opening) if opening else [])]
        if (asked := self._asked(number, row, 0)) is not None:
            return self._encoder.encode(number, [*self._rendered[asked.key], *opening])
        prompt: str = row["prompt"]
        pieces = self._restored(prompt)
        ids = self._encoder.encode(number, [*(pieces or [(prompt, False)]), *opening])
        start = self._encoder.start
        if pieces is None and ids[: len(start)] != start:
            ids = [*start, *ids]
        if prompt not in self._control:
            counted = Counter[str]() if pieces else self._encoder.control_in(ids)
            self._control[prompt] = Counter({k: n for k, n in counted.items() if k not in (self._markers or ())})
            separators = self._templates.separators()
            self._noted["restored"] += pieces is not None
            self._noted["bare"] += bool(not pieces and not counted and separators and separators.writes_control)
        return ids

    def _restored(self, prompt: str) -> list[Piece] | None:
        separators = self._templates.separators()
        bare = separators is not None and not any(name in prompt for name in self._encoder.special.values())
        return separators.restored(prompt) if separators and bare else None

    # --- rendering ---

    def _asked(self, number: int, row: Row, place: int) -> Conversation | None:
        """The conversation before a completion's message; None if the prompt is no messages."""
        if row.get("prompt_ids") is not None or not isinstance(row.get("prompt"), list):
            return None
        history = [self._as_read(message) for message in (row.get("completion") or [])[:place]] if place else []
        return Conversation(number, [*row["prompt"], *history], row.get("tools") or self._tools)

    def _replied(self, number: int, row: Row, place: int, said: Spoken) -> Conversation:
        asked = self._asked(number, row, place)
        assert asked is not None
        messages = [*asked.messages, self._templates.renderer().reply(said)]
        return asked._replace(messages=messages, reply=True)

    def _as_read(self, message: dict[str, Any]) -> dict[str, Any]:
        """A message of a completion with its reasoning where the template looks for it."""
        said = spoken(message)
        if message["role"] in FED_ROLES or not said.reasoning:
            return message
        kept = {key: value for key, value in plain(message).items() if value != said.reasoning}
        return kept | self._templates.renderer().reply(said)

    def _render(self, rows: Sequence[tuple[int, Row]]) -> dict[str, list[Piece]]:
        """The pieces of all conversations that the rows need, by their keys."""
        spoken_in = [(number, row) for number, row in rows if self._asked(number, row, 0) is not None]
        if not spoken_in:
            if self._tools:
                raise BadSample(
                    "`tools` are shown by the chat template, which renders messages, and all prompts are text or ids"
                )
            return {}
        try:
            renderer = self._templates.renderer()
        except ValueError as error:
            raise BadSample(
                f"{self._encoder.where or self._encoder.row(spoken_in[0][0])}: prompts are messages, which must be "
                f"rendered, and {error}. Or give prompts as text, or as ids"
            ) from error
        needed: dict[str, Conversation] = {}
        for one in chain.from_iterable(self._needed(number, row) for number, row in spoken_in):
            needed.setdefault(one.key, one)
        return dict(zip(needed, renderer.render(list(needed.values())), strict=True))

    def _needed(self, number: int, row: Row) -> Iterator[Conversation]:
        """The conversations that a row's turns need."""
        if (asked := self._asked(number, row, 0)) is not None:
            yield asked
        completion = row.get("completion")
        if row.get("completion_ids") is not None or not isinstance(completion, list):
            return
        places = _places(completion)
        for place in places if self._which == "all" else places[:1]:
            if (asked := self._asked(number, row, place)) is None:
                continue
            yield asked
            said = spoken(completion[place])
            if said.reasoning and self._markers is not None:
                yield self._replied(number, row, place, said)

    def _lacks_opening(self, rows: Sequence[tuple[int, Row]], opening: str) -> bool:
        """Whether completions are text that closes a reasoning, and neither they nor their prompts open one. A mention
        of the opening opens none."""
        assert self._markers is not None
        closes = False
        for number, row in rows:
            if row.get("completion") is None or row.get("completion_ids") is not None:
                continue
            asked, said = self._asked(number, row, 0), _first_said(row["completion"], opening)
            pieces = self._rendered[asked.key] if asked else [(str(row.get("prompt")), False)]
            if said.lstrip().startswith(opening) or _opens(pieces, opening):
                return False
            closes = closes or self._markers[1] in said.partition(opening)[0]
        return closes


def _first_said(completion: str | Messages, opening: str) -> str:
    """The text of a completion, with the opening of a reasoning that a message keeps elsewhere."""
    if isinstance(completion, str):
        return completion
    said = [spoken(completion[place]) for place in _places(completion)]
    return opening if any(one.reasoning for one in said) else "\n".join(one.content for one in said)


def _places(completion: Messages) -> list[int]:
    """The places of the messages that the policy wrote; the first one's if no role says so."""
    return [place for place, one in enumerate(completion) if one["role"] not in FED_ROLES] or [0]


def _cut_already(row: Row) -> bool:
    return any(row.get(key) is not None for key in ("completion_ids", "reasoning_ids", "reasoning"))


def _opens(pieces: Sequence[Piece], marker: str) -> bool:
    """Whether a prompt ends with the opening of the reasoning, which a message's content cannot write."""
    text, foreign = pieces[-1] if pieces else ("", True)
    return not foreign and text.rstrip().endswith(marker)
