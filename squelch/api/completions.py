"""Where a completion's reasoning and answer lie, in its text or in its ids.

The reasoning lies between two markers; its opening may be in the prompt instead. White space before the opening is
dropped, white space after it belongs to the reasoning. The answer goes from the closing of the reasoning through
`</answer>`, or to the end. In ids a token that holds a part of a marker belongs to the marker, as in a run
(`actors.play.codec`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

from squelch.envs.format import ANSWER_CLOSE

EMPTY = "empty reasoning"
UNCLOSED = "reasoning never closed"
TEXT_BEFORE = "text before the reasoning"

Markers = tuple[str, str]
"""The texts that open and close a reasoning."""


def split_completion(text: str, opening: str, closing: str) -> tuple[str | None, str | None]:
    """(reasoning, None), or (None, the reason why it cannot be scored)."""
    before, opened, rest = text.partition(opening)
    if opened and before.strip():
        return None, TEXT_BEFORE
    reasoning, closed, _ = (rest if opened else text).partition(closing)
    if not closed:
        return None, UNCLOSED
    return (reasoning, None) if reasoning.strip() else (None, EMPTY)


def answer_text(text: str, closing: str) -> str | None:
    """The end of a completion from the closing of its reasoning on; None if nothing follows the closing."""
    _, closed, rest = text.partition(closing)
    answer, ended, _ = rest.partition(ANSWER_CLOSE)
    return closed + answer + ended if closed and answer.strip() else None


class Spans(NamedTuple):
    """Positions in a completion's ids: of the first id of the reasoning, of the first after it, and of the first after
    the answer, None without an answer."""

    start: int
    end: int
    answer_end: int | None


def split_ids(ids: Sequence[int], decode: Callable[[Sequence[int]], str], markers: Markers) -> Spans | str:
    """The spans of a completion, or the reason why its reasoning cannot be scored. `decode`: ids to text, with control
    tokens."""
    opening, closing = markers
    text = decode(ids)
    reason = split_completion(text, opening, closing)[1]
    if reason is not None:
        return reason
    start = _through(opening, ids, decode) if opening in text else 0
    rest = ids[start:]
    place = decode(rest).index(closing)
    # a token that holds a part of a character decodes to U+FFFD
    end = bisect_left(range(len(rest)), True, key=lambda k: len(decode(rest[: k + 1]).rstrip("\ufffd")) > place)
    if not decode(rest[:end]).strip():
        return EMPTY
    after = rest[end:]
    spoken = answer_text(decode(after), closing)
    if spoken is None:
        return Spans(start, start + end, None)
    size = _through(ANSWER_CLOSE, after, decode) if spoken.endswith(ANSWER_CLOSE) else len(after)
    return Spans(start, start + end, start + end + size)


def _through(marker: str, ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> int:
    """Number of ids up to the one that completes the marker."""
    return 1 + bisect_left(range(len(ids)), True, key=lambda k: marker in decode(ids[: k + 1]))
