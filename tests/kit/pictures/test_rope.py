"""Positions of rows with pictures are those of the published model, and follow places instead of ids."""

import numpy as np
import pytest

from squelch.kit.pictures.geometry import Grid
from squelch.kit.pictures.rope import rope_positions

ROWS: list[list[int | Grid]] = [
    [7],
    [3, Grid(4, 4), 2],
    [1, Grid(8, 4), 9, Grid(4, 12), 1],
    [2, Grid(2, 2), 1, Grid(6, 6), 30, Grid(2, 8)],
]
"""Numbers of text ids, and pictures, in turn."""


def laid_out(parts: list[int | Grid], merge: int) -> tuple[list[int], list[tuple[int, Grid]]]:
    """1 for each id of a picture and 0 for each of text, and the pictures' places."""
    kinds: list[int] = []
    shown = []
    for part in parts:
        if isinstance(part, Grid):
            shown.append((len(kinds), part))
            kinds += [1] * (part.rows * part.columns // merge**2)
        else:
            kinds += [0] * part
    return kinds, shown


@pytest.mark.parametrize("parts", ROWS, ids=str)
def test_positions_are_those_of_the_published_model(parts: list[int | Grid]) -> None:
    torch = pytest.importorskip("torch")
    modeling = pytest.importorskip("transformers.models.qwen2_5_vl.modeling_qwen2_5_vl")
    config = modeling.Qwen2_5_VLConfig(vision_config={"spatial_merge_size": 2, "depth": 1}, text_config={})
    config.text_config.num_hidden_layers = 1
    with torch.device("meta"):
        model = modeling.Qwen2_5_VLModel(config)
    kinds, shown = laid_out(parts, 2)
    grids = torch.tensor([[1, *grid] for _, grid in shown]) if shown else None
    ids = torch.zeros((1, len(kinds)), dtype=torch.long)
    theirs, delta = model.get_rope_index(ids, torch.tensor([kinds], dtype=torch.int), image_grid_thw=grids)
    mine = rope_positions(len(kinds), shown, 2)
    assert np.array_equal(mine, theirs[:, 0].numpy())
    assert int(mine[:, -1].max()) + 1 == len(kinds) + int(delta)


def test_a_row_without_pictures_has_the_ordinary_positions() -> None:
    assert rope_positions(5, [], 2).tolist() == [list(range(5))] * 3


def test_the_positions_of_a_beginning_do_not_depend_on_what_follows() -> None:
    kinds, shown = laid_out(ROWS[2], 2)
    whole = rope_positions(len(kinds), shown, 2)
    cut = shown[1][0]
    assert np.array_equal(rope_positions(cut, shown[:1], 2), whole[:, :cut])


@pytest.mark.parametrize(("length", "places"), [(6, [3]), (20, [2, 5]), (20, [-1])])
def test_a_picture_that_is_cut_or_overlaps_another_is_refused(length: int, places: list[int]) -> None:
    with pytest.raises(ValueError, match="not whole"):
        rope_positions(length, [(place, Grid(4, 4)) for place in places], 2)
