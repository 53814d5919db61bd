"""The pictures of a trajectory on the page: each as it was fed, its placeholder ids one mark in the text.

A picture's bytes are decoded under the bounds for files from elsewhere before the page holds them: an archive may come
from anybody, and a browser is given nothing but one exact PNG.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from squelch.cluster.inspector.texts import Pieces
from squelch.kit.records.content import Picture
from squelch.kit.untrusted.files import Unreadable


@dataclass(frozen=True)
class PictureView:
    """One picture. `number`: from 1, in the trajectory; `source`: a data URL, None if it cannot be shown, and then
    `problem` says why; `width`, `height`: pixels."""

    number: int
    source: str | None = None
    width: int = 0
    height: int = 0
    problem: str = ""


def picture_view(picture: Picture, number: int) -> PictureView:
    """The view of one picture."""
    if picture.data is None:
        return PictureView(number, problem=f"its bytes are stored as {picture.reference or 'nothing'}")
    try:
        width, height = picture.decoded(f"picture {number}").size
    except Unreadable as error:
        return PictureView(number, problem=str(error))
    return PictureView(number, f"data:image/png;base64,{base64.b64encode(picture.data).decode()}", width, height)


def marked_text(pieces: Pieces, ids: np.ndarray, pictures: Sequence[Picture], number: int = 1) -> str:
    """The text of fed ids, with `[picture NUMBER]` in place of each picture's placeholders.

    Args:
        pieces: texts of tokens.
        ids: (num_tokens,) fed ids.
        pictures: those whose placeholders begin in `ids`, in order, with positions that count from its start.
        number: the first picture's number.
    """
    parts, last = [], 0
    for index, picture in enumerate(pictures, number):
        parts.append(f"{pieces.text(ids[last : picture.position])}\n[picture {index}]\n")
        others = np.flatnonzero(ids[picture.position :] != ids[picture.position])
        last = picture.position + int(others[0]) if len(others) else len(ids)
    return "".join([*parts, pieces.text(ids[last:])])
