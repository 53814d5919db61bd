"""Boards as pictures: what was drawn is read back, and nothing else is."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squelch.envs.grid_worlds.base import GridEnv
from squelch.envs.grid_worlds.picture import MAX_CELL_PIXELS, MIN_CELL_PIXELS, picture_of, rows_of
from squelch.envs.grid_worlds.symbols import FROZEN_LAKE, SOKOBAN
from squelch.envs.registry import make
from squelch.envs.wording import PromptName
from squelch.kit.records.pictures import Picture

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


@pytest.mark.parametrize("name", sorted(LEGENDS))
@pytest.mark.parametrize("style", ["tiny", "natural"])
def test_an_observation_shows_the_board_as_text_as_a_picture_or_as_both(name: str, style: PromptName) -> None:
    text, picture, both = (
        made(name, style, **options)
        for options in ({}, {"observation_format": "picture"}, {"observation_format": "both", "cell_pixels": 63})
    )
    written, drawn, all_of_it = (one.reset(seed=3, options={"noise_seed": 1})[0] for one in (text, picture, both))
    assert isinstance(written, str) and not text.shows_pictures and picture.shows_pictures and both.shows_pictures
    assert drawn.text == "" and len(drawn.pictures) == 1
    assert all_of_it.parts == (f"{written}\n", all_of_it.pictures[0])
    for shown, env in ((drawn, picture), (all_of_it, both)):
        assert env.picture_sizes() == [shown.pictures[0].size]
        assert rows_of(shown.pictures[0].rgb, env.legend) == text.board().replace(" ", "").split("\n")
    again = picture.step("Left")[0]
    text.step("Left")
    assert rows_of(again.pictures[0].rgb, picture.legend) == text.board().replace(" ", "").split("\n")


@pytest.mark.parametrize("name", sorted(LEGENDS))
def test_the_rules_say_what_a_picture_shows_and_no_worked_turn_shows_a_board_that_the_policy_never_sees(name) -> None:
    text, picture, both = (
        made(name, "natural", **({"observation_format": one} if one else {})) for one in (None, "picture", "both")
    )
    assert "symbol" in text.rules() and "picture" not in text.rules()
    assert "symbol" not in picture.rules() and "green disc" in picture.rules() and picture.wording.example is None
    assert "symbol" in both.rules() and "green disc" in both.rules() and both.wording.example is not None


@pytest.mark.parametrize("name", sorted(LEGENDS))
def test_the_judge_reads_the_last_picture(name: str) -> None:
    env = made(name, "tiny", observation_format="picture", cell_pixels=8)
    first = env.reset(seed=5, options={"noise_seed": 1})[0].pictures[0]
    last = env.step("Left")[0].pictures[0]
    judge = env.judge()
    assert judge.facts("no board", (first, last)) == judge.facts(env.board())
    assert judge.facts(env.board(), (Picture(np.zeros((32, 32, 3), np.uint8)),)) is None


def made(name: str, style: PromptName, **options: Any) -> GridEnv:
    found = make(name, options=options, prompt=style)
    assert isinstance(found, GridEnv)
    return found
