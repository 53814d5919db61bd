"""Where the reasoning and the answer of one turn lie, in its text and in its ids.

The reasoning lies between two markers, by the rule of `kit.text.tags`, or before the answer (`kit.text.answer_start`).
White space around the reasoning belongs to it. The answer goes from the closing of the reasoning, or its own beginning,
through `</answer>`, or up to a call of a tool, or to the end of the turn. A turn's text is encoded whole and cut
between its tokens, so that text and ids are cut alike: a token that holds a part of a marker, or of the answer's
beginning, belongs to that, as in a run (`actors.formats.tokens`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple, get_args

from squelch.kit.text.answer_start import BEFORE_ANSWER, COMPLETION, AnswerStart, Reasoning
from squelch.kit.text.tags import ANSWER_CLOSE, THINK_CLOSE, THINK_OPEN

EMPTY = "empty reasoning"
UNCLOSED = "reasoning never closed"
UNMARKED = "no reasoning is marked"
NO_ANSWER = "no answer begins"
TEXT_BEFORE = "text before the reasoning"
SUMMARY = "a summary of the reasoning, not the reasoning"
CALLS_ONLY = "calls of tools without reasoning"
NO_TOKENS = "words that the tokenizer has no tokens for"
HALF_CHARACTER = "a part of a character, of which text does not tell the tokens: give ids"
UNREADABLE = "\ufffd"
"""What a text has in the place of bytes that are no character."""

TOOL_CALLS = (
    "<tool_call",
    "<tool_code>",
    "<function_call",
    "<function=",
    "[TOOL_CALLS]",
    "<|tool_call",
    "<|python_tag|>",
)
TOOL_CALLS += ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<|channel|>commentary")
"""With which models begin a call of a tool."""

Markers = tuple[str, str]
"""The texts that open and close a reasoning."""
MARKERS: Markers = (THINK_OPEN, THINK_CLOSE)
Where = Markers | AnswerStart | None
"""Where a completion's reasoning lies: between markers, or before what finds its answer; None: it is not divided."""


def where_of(reasoning: Reasoning = "marked", markers: Markers | None = MARKERS, answer: str = "") -> Where:
    """Where reasonings lie, of the arguments of `squelch.score`. ValueError if they do not fit together."""
    if reasoning not in get_args(Reasoning):
        raise ValueError(f"`reasoning` is {reasoning!r}; it must be one of {', '.join(get_args(Reasoning))}")
    if bool(answer) != (reasoning == BEFORE_ANSWER):
        raise ValueError(
            f"`reasoning` is {reasoning} and `answer` {answer!r}: before_answer needs the text with which answers "
            "begin, such as \\boxed{, ####, Answer: or re: with a regular expression; the others need none"
        )
    if answer:
        return AnswerStart(answer)
    if markers is not None and (len(markers) != 2 or not all(isinstance(one, str) and one for one in markers)):
        raise ValueError("`markers` must be two texts, or None where completions are scored as a whole")
    return None if markers is None or reasoning == COMPLETION else (markers[0], markers[1])


def markers_of(where: Where) -> Markers | None:
    """The markers, if reasonings lie between some."""
    return where if isinstance(where, tuple) else None


class Spans(NamedTuple):
    """Positions in a turn's text, or in its ids: at which the reasoning begins and ends, and at which the answer ends,
    None without an answer."""

    start: int
    end: int
    answer_end: int | None


def spans_of(text: str, where: Where, opened: bool = False) -> Spans | str:
    """The spans in a turn's text, or the reason why its reasoning cannot be scored. `opened`: whether the prompt is
    known to open the reasoning; it is also taken to, if the turn closes one without an opening before."""
    if where is None:
        return Spans(0, len(text), None) if text.strip() else EMPTY
    if isinstance(where, AnswerStart):
        begun = where.find(text)
        if begun < 0:
            return NO_ANSWER
        return Spans(0, begun, _answer_end(text, begun)) if text[:begun].strip() else EMPTY
    return _between(text, where, opened)


def _between(text: str, markers: Markers, opened: bool) -> Spans | str:
    opening, closing = markers
    begun, closed = text.find(opening), text.find(closing)
    start = 0
    if begun >= 0 and (closed < 0 or begun < closed):
        begins = not text[:begun].strip()
        if not begins and not opened:
            return TEXT_BEFORE
        start = begun + len(opening) if begins else 0
        closed = text.find(closing, start)
    if closed < 0:
        return UNCLOSED if begun >= 0 or opened else UNMARKED
    return Spans(start, closed, _answer_end(text, closed + len(closing))) if text[start:closed].strip() else EMPTY


def _answer_end(text: str, start: int) -> int | None:
    ended = text.find(ANSWER_CLOSE, start)
    end = len(text) if ended < 0 else ended + len(ANSWER_CLOSE)
    called = [place for place in (text.find(name, start, end) for name in TOOL_CALLS) if place >= 0]
    if called:
        end = start + len(text[start : min(called)].rstrip())
    return end if text[start:end].removesuffix(ANSWER_CLOSE).strip() else None


def calls_tools(text: str) -> bool:
    """Whether a turn's text calls a tool."""
    return any(name in text for name in TOOL_CALLS)


def cut(spans: Spans, num_ids: int, end_of: Callable[[int], int]) -> Spans:
    """The spans in a turn's ids; `end_of`: index of an id to the position in the text at which its token ends."""

    def through(position: int) -> int:
        """Number of ids up to the one with which the text reaches a position."""
        return min(num_ids, 1 + bisect_left(range(num_ids), position, key=end_of)) if position else 0

    start, end = through(spans.start), ids_before(spans.end, num_ids, end_of)
    return Spans(start, max(start, end), None if spans.answer_end is None else through(spans.answer_end))


def ids_before(position: int, num_ids: int, end_of: Callable[[int], int]) -> int:
    """Number of ids that lie wholly before a position in their text; `end_of`: as of `cut`."""
    return bisect_left(range(num_ids), True, key=lambda k: end_of(k) > position)


def split_ids(
    ids: Sequence[int], decode: Callable[[Sequence[int]], str], where: Where, opened: bool = False
) -> Spans | str:
    """The spans in a turn's ids, or the reason why its reasoning cannot be scored. `decode`: ids to text, with control
    tokens; `opened`: as of `spans_of`."""
    spans = spans_of(decode(ids), where, opened)
    if isinstance(spans, str):
        return spans
    found = cut(spans, len(ids), ends_in(ids, decode))
    return found if decode(ids[found.start : found.end]).strip() else EMPTY


def ends_in(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> Callable[[int], int]:
    """What `cut` needs to know of ids that were sampled."""
    # a token that holds a part of a character decodes to U+FFFD
    return lambda k: len(decode(ids[: k + 1]).rstrip(UNREADABLE))
