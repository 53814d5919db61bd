"""Where the reasoning and the answer of one turn lie, in its text and in its ids.

The reasoning lies between two markers, by the rule of `kit.text.tags`. White space around the reasoning belongs to it.
The answer goes from the closing of the reasoning through `</answer>`, or up to a call of a tool, or to the end of the
turn. A turn's text is encoded whole and cut between its tokens, so that text and ids are cut alike: a token that holds
a part of a marker belongs to the marker, as in a run (`actors.play.codec`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

from squelch.kit.text.tags import ANSWER_CLOSE

EMPTY = "empty reasoning"
UNCLOSED = "reasoning never closed"
TEXT_BEFORE = "text before the reasoning"
SUMMARY = "a summary of the reasoning, not the reasoning"
CALLS_ONLY = "calls of tools without reasoning"
NO_TOKENS = "words that the tokenizer has no tokens for"

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


class Spans(NamedTuple):
    """Positions in a turn's text, or in its ids: at which the reasoning begins and ends, and at which the answer ends,
    None without an answer."""

    start: int
    end: int
    answer_end: int | None


def spans_of(text: str, markers: Markers, opened: bool = False) -> Spans | str:
    """The spans in a turn's text, or the reason why its reasoning cannot be scored. `opened`: whether the prompt is
    known to open the reasoning; it is also taken to, if the turn closes one without an opening before."""
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
        return UNCLOSED
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
    ids: Sequence[int], decode: Callable[[Sequence[int]], str], markers: Markers, opened: bool = False
) -> Spans | str:
    """The spans in a turn's ids, or the reason why its reasoning cannot be scored. `decode`: ids to text, with control
    tokens; `opened`: as of `spans_of`."""
    spans = spans_of(decode(ids), markers, opened)
    if isinstance(spans, str):
        return spans
    found = cut(spans, len(ids), ends_in(ids, decode))
    return found if decode(ids[found.start : found.end]).strip() else EMPTY


def ends_in(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> Callable[[int], int]:
    """What `cut` needs to know of ids that were sampled."""
    # a token that holds a part of a character decodes to U+FFFD
    return lambda k: len(decode(ids[: k + 1]).rstrip("\ufffd"))
