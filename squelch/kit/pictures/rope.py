"""Positions of a row of ids with pictures: one number a token each for time, height and width (M-RoPE).

Invariants:

- Pictures are known by their places. Ids are never looked at, so a placeholder id that the policy sampled is text.
- Text advances all three by 1 a token; a picture of h x w tokens advances them by max(h, w) as a whole. A row without
  pictures therefore has the ordinary positions, three times.
- A continuation starts at the largest position + 1, which is less than the number of ids once a picture was shown.

Still pictures of Qwen2-VL and Qwen2.5-VL only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from squelch.kit.pictures.geometry import Grid


def rope_positions(length: int, shown: Sequence[tuple[int, Grid]], merge: int) -> np.ndarray:
    """(3, length) int64: time, height and width of each of a row's ids.

    Args:
        length: number of ids.
        shown: for each picture, in order, the index of its first placeholder id and its grid of patches.
        merge: patches a side that become one token.

    Raises ValueError if a picture overlaps the one before it or the row ends within one.
    """
    found = np.empty((3, length), np.int64)
    done, position = 0, 0
    for start, grid in shown:
        height, width = grid.rows // merge, grid.columns // merge
        end = start + height * width
        if start < done or end > length:
            raise ValueError(
                f"a picture of {height} x {width} tokens at index {start} is not whole in a row of {length} ids, or "
                f"overlaps the picture before it, which ends at {done}"
            )
        found[:, done:start] = np.arange(position, position + start - done)
        position += start - done
        row, column = np.divmod(np.arange(height * width), width)
        found[:, start:end] = np.stack([np.zeros_like(row), row, column]) + position
        done, position = end, position + max(height, width)
    found[:, done:] = np.arange(position, position + length - done)
    return found
