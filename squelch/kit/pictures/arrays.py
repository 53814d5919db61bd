"""The pictures of rows that are fed together, as arrays: patches of each, where its features belong, and positions.

Invariants:

- A picture that several rows share, because they share the tokens before it, is fed once.
- Without a picture, one black token is fed whose features belong nowhere: every pass runs the tower, as the collectives
  of several ranks need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from squelch.kit.pictures.geometry import Grid, Vision
from squelch.kit.pictures.patches import patches
from squelch.kit.pictures.rope import rope_positions
from squelch.kit.records.content import Picture


@dataclass(frozen=True)
class Shown:
    """A picture of a row: the index of its first placeholder, its grid, its patches (`patches`), and the digest that it
    is known by."""

    position: int
    grid: Grid
    patches: np.ndarray
    digest: str = ""

    @classmethod
    def of(cls, position: int, rgb: np.ndarray, vision: Vision, digest: str = "") -> Shown:
        """The picture with these pixels. Raises ValueError as `Vision.grid` does."""
        return cls(position, vision.grid(rgb.shape[1], rgb.shape[0]), patches(rgb, vision), digest)

    def num_tokens(self, vision: Vision) -> int:
        """Number of its placeholders."""
        return self.grid.rows * self.grid.columns // vision.merge**2


@dataclass(frozen=True)
class PictureArrays:
    """`patches`: (num_patches, width) float32; `grids`: (num_pictures, 3) int64, time, rows and columns of patches;
    `places`: (num_placeholders,) int64, the fed token that each feature belongs to; `rope`: (3, num_tokens) int64."""

    patches: np.ndarray
    grids: np.ndarray
    places: np.ndarray
    rope: np.ndarray


def shown_of(pictures: Sequence[Picture], vision: Vision, where: str, known: dict[str, Shown]) -> list[Shown]:
    """What is fed of a row's pictures, in order. `known`: those that were decoded so far, by digest; it grows. Raises
    ValueError as `Picture.decoded` and `Vision.grid` do."""
    found = []
    for picture in sorted(pictures, key=lambda one: one.position):
        if picture.digest not in known:
            known[picture.digest] = Shown.of(0, picture.decoded(where).rgb, vision, picture.digest)
        found.append(replace(known[picture.digest], position=picture.position))
    return found


def positions_of(length: int, shown: Sequence[Shown], vision: Vision) -> np.ndarray:
    """(3, length) int64: positions of a row with these pictures."""
    return rope_positions(length, [(one.position, one.grid) for one in shown], vision.merge)


def arrays_of(
    rows: Sequence[Sequence[Shown]], places: Sequence[np.ndarray], num_tokens: int, vision: Vision
) -> PictureArrays:
    """The arrays of packed rows. `places`: per row, the indices of its tokens among the `num_tokens` fed ones
    (`kit.packed.packing.Forest`)."""
    rope = np.zeros((3, num_tokens), np.int64)
    fed: dict[int, tuple[np.ndarray, Shown]] = {}
    for shown, at in zip(rows, places, strict=True):
        rope[:, at] = positions_of(len(at), shown, vision)
        for one in shown:
            own = at[one.position : one.position + one.num_tokens(vision)]
            fed.setdefault(int(own[0]), (own, one))
    if not fed:
        return PictureArrays(*_black(vision), np.zeros(0, np.int64), rope)
    return PictureArrays(
        np.concatenate([one.patches for _, one in fed.values()]),
        np.array([(1, *one.grid) for _, one in fed.values()], np.int64),
        np.concatenate([own for own, _ in fed.values()]),
        rope,
    )


def _black(vision: Vision) -> tuple[np.ndarray, np.ndarray]:
    """Patches and grid of what becomes one token."""
    width = 3 * vision.temporal * vision.patch**2
    return np.zeros((vision.merge**2, width), np.float32), np.array([(1, vision.merge, vision.merge)], np.int64)
