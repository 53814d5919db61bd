"""A board as a picture, and read back from its pixels.

Every cell is a square of `cell_pixels` x `cell_pixels`, with a line at its top and left. Each thing that its symbol
shows (`GridEnv.legend`) is drawn over the one before it: the ground fills the cell, then what lies on it, then who
stands on that. Colours and shapes are fixed, so that equal boards have equal pixels, and no two symbols of a legend
look alike.

Invariant: `rows_of(picture_of(rows, legend, n), legend) == rows` for every square board of two or more cells a side.
`rows_of` accepts exact renderings only: a picture that was resized or compressed is no board.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np

MIN_CELL_PIXELS, MAX_CELL_PIXELS = 7, 128
MAX_SIDE = 16
"""Most cells a side of a board."""


class _Thing(NamedTuple):
    """`reach`: width in eighths of a cell."""

    colour: tuple[int, int, int]
    reach: int = 8
    shape: Literal["square", "disc"] = "square"


_THINGS: Mapping[str, _Thing] = {
    "ice": _Thing((200, 225, 245)),
    "floor": _Thing((226, 214, 190)),
    "wall": _Thing((96, 72, 60)),
    "hole": _Thing((25, 40, 90), 6, "disc"),
    "goal": _Thing((235, 190, 40), 6),
    "target": _Thing((220, 70, 90), 6),
    "box": _Thing((150, 92, 40), 4),
    "player": _Thing((20, 140, 40), 4, "disc"),
}
"""In the order of drawing. What no ground is named for stands on the ground of its legend."""
_GROUND = ("ice", "floor", "wall")
_LINE = 0.8
"""Brightness of a cell's line, as a share of its ground's."""


def picture_of(rows: Sequence[str], legend: Mapping[str, str], cell_pixels: int) -> np.ndarray:
    """(height, width, 3) uint8 of a board, one string per row. Raises KeyError for a symbol outside the legend."""
    tiles = _tiles(tuple(legend.items()), cell_pixels)
    return np.concatenate([np.concatenate([tiles[glyph] for glyph in row], axis=1) for row in rows], axis=0)


def rows_of(rgb: np.ndarray, legend: Mapping[str, str]) -> list[str] | None:
    """The board that a picture shows, one string per row; None if it is no rendering of a square board."""
    if rgb.ndim != 3 or rgb.dtype != np.uint8 or rgb.shape[0] != rgb.shape[1] or rgb.shape[2] != 3:
        return None
    for side in range(2, MAX_SIDE + 1):
        cell_pixels, rest = divmod(len(rgb), side)
        rows = None if rest or not MIN_CELL_PIXELS <= cell_pixels <= MAX_CELL_PIXELS else _read(rgb, side, legend)
        if rows is not None:
            return rows
    return None


def _read(rgb: np.ndarray, side: int, legend: Mapping[str, str]) -> list[str] | None:
    """The board of `side` cells a side; None if a cell is none of the legend's."""
    size = len(rgb) // side
    known = {tile.tobytes(): glyph for glyph, tile in _tiles(tuple(legend.items()), size).items()}
    cells = rgb.reshape(side, size, side, size, 3).transpose(0, 2, 1, 3, 4)
    found = [[known.get(np.ascontiguousarray(tile).tobytes()) for tile in row] for row in cells]
    rows = ["".join(glyph for glyph in row if glyph) for row in found]
    return rows if all(len(row) == side for row in rows) else None


@lru_cache(maxsize=64)
def _tiles(legend: tuple[tuple[str, str], ...], size: int) -> Mapping[str, np.ndarray]:
    """(size, size, 3) uint8 of each symbol."""
    shown = {glyph: text.split() for glyph, text in legend}
    [ground] = {name for names in shown.values() for name in names if name in _GROUND and name != "wall"}
    return {glyph: _tile([ground, *names], size) for glyph, names in shown.items()}


def _tile(names: Sequence[str], size: int) -> np.ndarray:
    tile = np.zeros((size, size, 3), np.uint8)
    from_centre = np.abs(2 * np.arange(size) + 1 - size)  # in half pixels, of each pixel's centre
    for name in sorted(set(names), key=list(_THINGS).index):
        thing = _THINGS[name]
        if name in _GROUND:
            tile[:] = thing.colour
            tile[0] = tile[:, 0] = np.array(thing.colour) * _LINE
        elif thing.shape == "square":
            inside = 8 * from_centre <= thing.reach * size
            tile[np.ix_(inside, inside)] = thing.colour
        else:
            squares = 8 * from_centre.astype(np.int64)
            tile[squares[:, None] ** 2 + squares[None, :] ** 2 <= (thing.reach * size) ** 2] = thing.colour
    return tile
