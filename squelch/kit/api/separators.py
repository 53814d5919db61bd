"""What a chat template writes between turns, and how text without control tokens is put back between them.

Trainers decode what was fed and sampled without special tokens: of `<|im_end|>`, a line break and `<|im_start|>user`
only the line break and `user` are logged. The template says what belongs there. A text is divided, or its control
tokens are put back, only where it is what the template writes, to the letter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from squelch.kit.text.chat_template import ChatTemplate, Part, TemplateRefused
from squelch.kit.text.control_tokens import Piece

_OPENINGS = (("system", "user"), ("user",))
_BETWEEN = ("user", "tool")
_CONTENT = "x"


class Form(NamedTuple):
    """Texts that stand before what comes between two turns (`begins`), and after it (`ends`)."""

    begins: tuple[str, ...]
    ends: str


class Divided(NamedTuple):
    """(start, end) of a completion's turns in its text, and what was fed after each but the last."""

    spans: list[tuple[int, int]]
    between: list[list[Piece]]


class Separators:
    """The texts around the turns of one chat template. `special`: the tokens that trainers leave out."""

    def __init__(self, template: ChatTemplate, special: Iterable[str]) -> None:
        names = sorted(filter(None, special), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, names)) if names else r"(?!)")
        shapes = [*_OPENINGS, *(("user", "assistant", role) for role in _BETWEEN)]
        found = _parts(template, shapes)
        self._openings = [parts for parts in found[: len(_OPENINGS)] if parts]
        around = [edges for parts in found[len(_OPENINGS) :] if (edges := _around(parts))]
        self._raw = self._form(around, bare=False)
        self._bare = self._form(around, bare=True)
        opening = self._openings[-1] if self._openings else ()
        self.writes_control = any(isinstance(part, str) and self._special.search(part) for part in opening)
        """Whether the template writes tokens that trainers leave out."""

    def divide(self, text: str) -> Divided:
        """The turns of a completion's text."""
        for form in (self._raw, self._bare):
            if form is not None and any(begin in text for begin in form.begins):
                return self._divided(text, form)
        return Divided([(0, len(text))], [])

    def restored(self, text: str) -> list[Piece] | None:
        """The pieces of a prompt's text with the template's control tokens, or None if the template did not write the
        text, or it is not certain where."""
        for parts in self._openings:
            bare = [self._special.sub("", part) if isinstance(part, str) else part for part in parts]
            if not any(isinstance(part, str) and re.search(r"\w", part) for part in bare):
                continue
            pattern = "".join(re.escape(part) if isinstance(part, str) else "(.*?)" for part in bare)
            closed = isinstance(bare[-1], str) and text.endswith(bare[-1])  # else the search could take long
            found = re.fullmatch(pattern, text, re.DOTALL) if closed else None
            if found is not None and not (self._bare and any(self._bare.ends in each for each in found.groups())):
                contents = iter(found.groups())
                return [(part, False) if isinstance(part, str) else (next(contents), True) for part in parts]
        return None

    def _form(self, around: list[tuple[str, str]], bare: bool) -> Form | None:
        if not around:
            return None
        begins = tuple(self._special.sub("", begin) if bare else begin for begin, _ in around)
        ends = self._special.sub("", around[0][1]) if bare else around[0][1]
        sound = all(re.search(r"\w", text) for text in (*begins, ends))
        return Form(begins, ends) if sound else None

    def _divided(self, text: str, form: Form) -> Divided:
        spans, between, place = list[tuple[int, int]](), list[list[Piece]](), 0
        begins = re.compile("|".join(map(re.escape, sorted(form.begins, key=len, reverse=True))))
        while (begun := begins.search(text, place)) is not None:
            ended = text.find(form.ends, begun.end())
            if ended < 0:
                if form is self._raw:  # an unfinished message of the environment
                    return Divided([*spans, (place, begun.start())], between)
                break
            spans.append((place, begun.start()))
            between.append(self._written(begun[0], text[begun.end() : ended], form))
            place = ended + len(form.ends)
        return Divided([*spans, (place, len(text))], between)

    def _written(self, begin: str, content: str, form: Form) -> list[Piece]:
        """What was fed between two turns, with control tokens."""
        if form is self._raw or self._raw is None:
            return [(begin + content + form.ends, False)]
        return [(self._raw.begins[form.begins.index(begin)], False), (content, True), (self._raw.ends, False)]


def _parts(template: ChatTemplate, shapes: Sequence[Sequence[str]]) -> list[tuple[Part, ...]]:
    """The conversations of these roles as parts; empty for one that the template refuses."""
    try:
        return template.parts([[{"role": role, "content": _CONTENT} for role in roles] for roles in shapes])
    except TemplateRefused:
        return [()] if len(shapes) == 1 else [*chain.from_iterable(_parts(template, [roles]) for roles in shapes)]


def _around(parts: tuple[Part, ...]) -> tuple[str, str] | None:
    """What stands before and after the third message, if each is one text."""
    if parts.count(1) != 1 or parts.count(2) != 1 or parts.index(2) != parts.index(1) + 2:
        return None
    begin, rest = parts[parts.index(1) + 1], parts[parts.index(2) + 1 :]
    return (begin, rest[0]) if isinstance(begin, str) and len(rest) == 1 and isinstance(rest[0], str) else None
