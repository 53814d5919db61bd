"""Boards as pictures: what was drawn is read back, and nothing else is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squelch.envs.grid_worlds.picture import MAX_CELL_PIXELS, MIN_CELL_PIXELS, picture_of, rows_of
from squelch.envs.grid_worlds.prompts import FROZEN_LAKE, SOKOBAN

LEGENDS = {"FrozenLake": FROZEN_LAKE, "Sokoban": SOKOBAN}


@given(
    data=st.data(),
    name=st.sampled_from(sorted(LEGENDS)),
    side=st.integers(2, 10),
    cell=st.integers(MIN_CELL_PIXELS, 32),
)
def test_every_board_of_every_size_is_read_back_from_its_picture(data, name: str, side: int, cell: int) -> None:
    rows = ["".join(data.draw(st.lists(st.sampled_from(sorted(LEGENDS[name])), min_size=side, max_size=side)))]
    rows = [*rows, *(data.draw(st.permutations(rows[0])) for _ in range(side - 1))]
    rows = ["".join(row) for row in rows]
    picture = picture_of(rows, LEGENDS[name], cell)
    assert picture.shape == (side * cell, side * cell, 3) and picture.dtype == np.uint8
    assert rows_of(picture, LEGENDS[name]) == rows


@pytest.mark.parametrize("name", sorted(LEGENDS))
@pytest.mark.parametrize("cell", [*range(MIN_CELL_PIXELS, 20), 28, 63, MAX_CELL_PIXELS])
def test_no_two_symbols_look_alike(name: str, cell: int) -> None:
    tiles = {picture_of([glyph], LEGENDS[name], cell).tobytes() for glyph in LEGENDS[name]}
    assert len(tiles) == len(LEGENDS[name])


@given(row=st.integers(0, 31), column=st.integers(0, 31), channel=st.integers(0, 2))
def test_a_picture_of_which_one_pixel_differs_is_no_board(row: int, column: int, channel: int) -> None:
    picture = picture_of(["P__O", "____", "_O__", "___G"], FROZEN_LAKE, 8)
    picture[row, column, channel] ^= 1
    assert rows_of(picture, FROZEN_LAKE) is None


@pytest.mark.parametrize(
    "picture",
    [
        np.zeros((32, 32, 3), np.uint8),
        np.zeros((32, 32, 4), np.uint8),
        np.zeros((32, 32, 3), np.float32),
        np.zeros((32, 16, 3), np.uint8),
        np.zeros((0, 0, 3), np.uint8),
        picture_of(["P_", "_G"], FROZEN_LAKE, 8)[::2, ::2],
    ],
)
def test_what_is_no_rendering_is_no_board(picture: np.ndarray) -> None:
    assert rows_of(picture, FROZEN_LAKE) is None
