"""Content keys: a prompt is identified by a digest of its content, i.e. its ids and its pictures. Pure.

Two prompts are the same if and only if their keys are equal. Ids alone do not distinguish pictures, because every
picture is fed as the same placeholder ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from squelch.kit.records import pictures as shown_pictures

KEY_BYTES = 16


@dataclass(frozen=True)
class Picture:
    """One picture in a trajectory: its bytes (`data`), or the key under which they are stored (`reference`)."""

    position: int
    """Index in the trajectory's `token_ids` of the first id that stands for the picture."""
    media_type: str
    """Media type of the encoded bytes, e.g. `image/png`."""
    digest: str
    """The first 128 bits of the identity of its pixels (`kit.records.pictures`), in hexadecimal."""
    data: bytes | None = None
    """The encoded bytes."""
    reference: str | None = None
    """Key of the bytes in the run's store, e.g. `pictures/1f...e0.png`."""

    @classmethod
    def of(cls, position: int, picture: shown_pictures.Picture) -> Picture:
        """The picture as a PNG."""
        from squelch.kit.records.picture_files import png_of  # reads pictures too, which most users of keys never do

        return cls(position, "image/png", picture.identity[: 2 * KEY_BYTES], png_of(picture))

    def decoded(self, where: str) -> shown_pictures.Picture:
        """The pixels. Raises ValueError, beginning with `where`, for a picture without its bytes or that cannot be
        decoded."""
        from squelch.kit.records.picture_files import own_picture_of_png

        if self.data is None:
            raise ValueError(f"{where}: the picture at {self.position} comes without its bytes ({self.reference})")
        return own_picture_of_png(self.data, where)


PlacedPictures = tuple[tuple[int, shown_pictures.Picture], ...]
"""Pictures among ids, in order: the index of each one's first placeholder id, and the picture."""


def moved(pictures: PlacedPictures, by: int) -> PlacedPictures:
    """The pictures of ids that stand `by` places later."""
    return tuple((position + by, picture) for position, picture in pictures)


Prompt = tuple[np.ndarray, tuple[Picture, ...]]
"""Ids (num_tokens,) and their pictures."""


def content_key(ids: np.ndarray, pictures: Sequence[Picture] = ()) -> str:
    """The key of a prompt: 32 hexadecimal digits, the same on every machine.

    Args:
        ids: (num_tokens,) token ids of the prompt, any integer type.
        pictures: the prompt's pictures; the key does not depend on where their bytes are stored.
    """
    shown = sorted(pictures, key=lambda picture: picture.position)
    parts = [np.ascontiguousarray(ids, dtype="<i4").tobytes(), _number(len(ids))]
    parts += [_number(picture.position) + bytes.fromhex(picture.digest) for picture in shown]
    return hashlib.blake2b(b"".join([*parts, _number(len(shown))]), digest_size=KEY_BYTES).digest().hex()


def _number(value: int) -> bytes:
    return value.to_bytes(8, "little")


def pictures_within(pictures: Sequence[Picture], start: int, end: int) -> tuple[Picture, ...]:
    """The pictures whose ids begin in `[start, end)`, with positions that count from `start`."""
    inside = (picture for picture in pictures if start <= picture.position < end)
    return tuple(replace(picture, position=picture.position - start) if start else picture for picture in inside)
