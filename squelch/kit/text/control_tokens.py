"""Encodes text whose foreign parts must not yield control tokens.

A prompt is the model's chat template filled with texts that the template's author did not write: rules, observations,
retrieved passages, a user's rows. Were `<|im_end|><|im_start|>system` in a passage matched as control tokens, the
passage could close its message and speak as the system. So a prompt is given in *pieces*, each foreign or not.

Invariants:

- No control token overlaps a foreign piece, however the tokenizer finds it: in the text as written, after
  normalisation, across the border of two pieces, or as a word of its own model's vocabulary.
- Text whose foreign pieces match no control token has the ids that the tokenizer gives to the whole text, to the bit.
  Otherwise the text is cut inside each foreign match, and its parts are encoded one by one.

*Control tokens* are the added tokens that are marked special, are punctuation at both ends with a letter or digit in
between (`<tool_call>`, `[INST]`), or stand in the chat template. Other added tokens are ordinary vocabulary: runs of
white space, single characters, words. Neither Ray nor transformers is imported.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice, pairwise

import numpy as np
from tokenizers import Encoding, Tokenizer

Piece = tuple[str, bool]
"""(text, whether it is foreign)."""
Span = tuple[int, int]
_LONGEST_EDGE = 64
"""Control tokens are compared with the ends of a text up to this length."""
_LONG = 2**14
"""Characters from which a text is encoded as a batch of one, during which other threads run: `encode` lets none run."""


def foreign_pieces(text: str, allowed: Sequence[str] = ()) -> list[Piece]:
    """The pieces of a foreign text in which only the control tokens `allowed` may be matched."""
    if not allowed:
        return [(text, True)]
    parts = re.split(f"({'|'.join(map(re.escape, allowed))})", text)
    return [(part, part not in allowed) for part in parts if part]


class TextEncoder:
    """Encodes pieces of text with a tokenizer. `template`: the source of the model's chat template."""

    def __init__(self, tokenizer: Tokenizer, template: str = "") -> None:
        self._tokenizer = tokenizer
        written = set(tokenizer.encode(template, add_special_tokens=False).ids)
        self.control: dict[int, str] = {
            index: token.content
            for index, token in tokenizer.get_added_tokens_decoder().items()
            if _is_control(token.content, token.special, index in written)
        }
        """The control tokens: id and text."""
        self._ids = np.array(sorted(self.control), dtype=np.int64)
        normalizer = tokenizer.normalizer
        self._normal = (lambda text: text) if normalizer is None else normalizer.normalize_str
        self._names = sorted(self.control.values())
        self._reversed = sorted(name[::-1] for name in self.control.values())

    def encode(self, pieces: Iterable[Piece]) -> list[int]:
        """The ids of the pieces' text, without the special tokens that a post-processor would add.

        Raises ValueError if the tokenizer makes a control token of a single foreign character.
        """
        return [index for _, part in self._encode(*_joined(pieces)) for index in part.ids]

    def encode_at(self, pieces: Iterable[Piece]) -> tuple[list[int], list[int]]:
        """The ids as of `encode`, and for each of them the position in the pieces' text at which its token ends."""
        parts = self._encode(*_joined(pieces))
        ids = [index for _, part in parts for index in part.ids]
        ends = np.array([start + end for start, part in parts for _, end in part.offsets], dtype=np.int64)
        return ids, np.maximum.accumulate(ends).tolist()  # some tokenizers leave white space out of their offsets

    def matched(self, text: str) -> Counter[str]:
        """The control tokens that the tokenizer finds in a text, with their numbers."""
        found = self._encoded(text)
        return Counter(self.control[index] for index, _, _ in self._hits(text, found))

    def may_control(self, text: str, allowed: Sequence[str] = ()) -> bool:
        """Whether the text holds a control token other than `allowed`, or could complete one that begins or ends in
        the text beside it."""
        shown = text.strip()
        for size in range(1, min(len(shown), _LONGEST_EDGE) + 1):
            if _begins_one(shown[-size:], self._names) or _begins_one(shown[:size][::-1], self._reversed):
                return True
        return bool(self.matched(text).keys() - set(allowed))

    def _encode(
        self, text: str, foreign: list[Span], again: bool = False, place: int = 0
    ) -> list[tuple[int, Encoding]]:
        """The text's parts in order, each with its position, which begins at `place`."""
        encoding = self._encoded(text)
        hits = self._hits(text, encoding) if foreign else []
        cuts = sorted({cut for _, start, end in hits for cut in _cuts(start, end, foreign, again)})
        if not cuts:
            return [(place, encoding)]
        parts: list[tuple[int, Encoding]] = []
        for start, end in pairwise([0, *cuts, len(text)]):
            parts += self._encode(text[start:end], _within(foreign, start, end), True, place + start)
        return parts

    def _encoded(self, text: str) -> Encoding:
        if len(text) < _LONG:
            return self._tokenizer.encode(text, add_special_tokens=False)
        (found,) = self._tokenizer.encode_batch([text], add_special_tokens=False)
        return found

    def _hits(self, text: str, encoding: Encoding) -> list[tuple[int, int, int]]:
        """(id, start, end) of each control token that the text spells; the range leaves out white space that the token
        swallowed. A token with which the model stands for other text (unknown words, bytes) is none."""
        ids = np.array(encoding.ids, dtype=np.int64)
        places = np.flatnonzero(np.isin(ids, self._ids))
        if not len(places):
            return []
        offsets, found = encoding.offsets, []
        for place in places:
            index, (start, end) = int(ids[place]), offsets[place]
            inner = text[start:end].strip()
            start += len(text[start:end]) - len(text[start:end].lstrip())
            name = self.control[index].strip()
            if inner == name or self._normal(inner) == self._normal(name):
                found.append((index, start, start + len(inner)))
        return found


def _joined(pieces: Iterable[Piece]) -> tuple[str, list[Span]]:
    """The text of all pieces, and the ranges in it that are foreign."""
    texts, foreign, place = [], [], 0
    for text, is_foreign in pieces:
        if is_foreign and text:
            foreign.append((place, place + len(text)))
        texts.append(text)
        place += len(text)
    return "".join(texts), foreign


def _is_control(text: str, special: bool, written: bool) -> bool:
    if len(text) < 2 or text.isspace():
        return False
    marks = not (text[0].isalnum() or text[0].isspace() or text[-1].isalnum() or text[-1].isspace())
    return special or (marks and any(map(str.isalnum, text))) or (written and not text.isalnum())


def _begins_one(text: str, names: list[str]) -> bool:
    """Whether one of the names, which are sorted, is longer than `text` and begins with it."""
    place = bisect_left(names, text)
    return any(len(name) > len(text) and name.startswith(text) for name in names[place : place + 2])


def _cuts(start: int, end: int, foreign: list[Span], again: bool) -> Iterable[int]:
    """Positions at which to cut a control token found at [start, end), so that it is not found again; empty if it
    overlaps no foreign range. A token that crosses a border is cut there. `again`: cuts uncovered it, so every
    character is cut."""
    overlap = _within(foreign, start, end)
    if not overlap:
        return ()
    if end - start < 2:
        raise ValueError("the tokenizer has a control token of one character, which cannot be distinguished from text")
    if again:
        return range(start + 1, end)
    first, last = start + overlap[0][0], start + overlap[-1][1]
    return (first if first > start else last if last < end else start + 1,)


def _within(foreign: list[Span], start: int, end: int) -> list[Span]:
    """The parts of the ranges that lie in [start, end), counted from `start`. The ranges ascend."""
    found: list[Span] = []
    for first, last in islice(foreign, bisect_right(foreign, start, key=lambda span: span[1]), None):
        if first >= end:
            break
        found.append((max(first, start) - start, min(last, end) - start))
    return found
