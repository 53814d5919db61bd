"""Pictures of a file's prompts, at their places among the ids.

A rendered prompt has a place for each picture: start, placeholder, end. It is written so by chat templates, with one
placeholder, and by trainers that log ids, with one for each token of the picture (`kit.pictures.geometry`).

Invariants:

- A prompt has exactly as many places as its row has pictures, and a place is of its picture's size or of one
  placeholder; anything else is refused, because the policy was shown something else.
- Placeholders outside a place are text: the policy may sample one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

from tokenizers import Tokenizer

from squelch.kit.pictures.geometry import Vision
from squelch.kit.records.content import Picture
from squelch.kit.text.control_tokens import TextEncoder


class Given(NamedTuple):
    """A row's picture. `size`: (width, height) in pixels; `picture`: its pixels, at no place yet."""

    size: tuple[int, int]
    picture: Picture


def place_of(tokenizer: Tokenizer, vision: Vision) -> str:
    """A picture's place in a rendered text. ValueError if the tokenizer does not keep its tokens apart from text."""
    names = TextEncoder(tokenizer).control
    vision.require_apart(names)
    return "".join(names[index] for index in (vision.start_id, vision.picture_id, vision.end_id))


def placed(ids: Sequence[int], given: Sequence[Given], vision: Vision) -> tuple[list[int], tuple[Picture, ...]]:
    """The ids with a placeholder for each token of the pictures, and the pictures at their places. ValueError if the
    places are not those of the pictures."""
    places = _places(ids, vision)
    if len(places) != len(given):
        raise ValueError(
            f"the prompt has places for {len(places)} pictures, and the row has {len(given)}; each picture needs one: "
            "a part of a message's content, `<image>`, or the model's own tokens for it. Pictures in a completion are "
            "not read"
        )
    found, shown, done = list[int](), list[Picture](), 0
    for number, ((start, end), one) in enumerate(zip(places, given, strict=True), 1):
        count = vision.tokens(*one.size)
        if end - start not in (1, count):
            raise ValueError(
                f"picture {number} of {one.size[0]} x {one.size[1]} pixels is {count} placeholders, and the prompt has "
                f"{end - start} for it: the policy was shown another size; give the picture as it was fed"
            )
        found += ids[done:start]
        shown.append(replace(one.picture, position=len(found)))
        found, done = [*found, *[vision.picture_id] * count], end
    return [*found, *ids[done:]], tuple(shown)


def _places(ids: Sequence[int], vision: Vision) -> list[tuple[int, int]]:
    """(start, end) of the placeholders of each place."""
    if vision.picture_id not in ids:
        return []
    found, at = list[tuple[int, int]](), 0
    for index, run in groupby(ids):
        start, at = at, at + len(list(run))
        around = start > 0 and at < len(ids) and (ids[start - 1], ids[at]) == (vision.start_id, vision.end_id)
        if index == vision.picture_id and around:
            found.append((start, at))
    return found
