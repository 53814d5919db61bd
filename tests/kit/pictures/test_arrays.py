"""Rows with pictures that are fed together: each has the positions that it has alone, and pictures lie where they are
shown."""

import numpy as np
import pytest

from squelch.kit.packed.packing import pack
from squelch.kit.pictures.arrays import Shown, arrays_of
from squelch.kit.pictures.geometry import Vision, vision_of
from squelch.kit.pictures.patches import patches
from squelch.kit.pictures.rope import rope_positions
from squelch.kit.records.shared_prefix import identities
from tests.pictures import picture, placed

BEFORE = 20
"""Ids before a row's first picture, and behind each: as many as are worth sharing."""


@pytest.fixture
def vision(folder_with) -> Vision:
    found = vision_of(folder_with())
    assert found is not None
    return found


def row(vision: Vision, names: str, words: int) -> tuple[np.ndarray, list[Shown]]:
    """A beginning, a picture of 1 x 2 tokens for each letter with ids after it, and `words` further ids."""
    ids, shown = list(range(BEFORE)), []
    for name in names:
        shown.append(Shown.of(len(ids), picture(name.encode(), width=16).rgb, vision, name))
        ids += [vision.picture_id, vision.picture_id, *range(60, 60 + BEFORE)]
    return np.array([*ids, *range(50, 50 + words)]), shown


def test_packed_rows_have_their_own_positions_and_a_shared_picture_is_fed_once(vision: Vision) -> None:
    rows = [row(vision, "ab", 3), row(vision, "ac", 9), row(vision, "", 5), row(vision, "b", 1)]
    stored = [[placed(one.position, one.digest.encode()) for one in shown] for _, shown in rows]
    ids = [own for own, _ in rows]
    forest = pack(ids, True, identities(ids, stored))
    assert forest.num_tokens < sum(map(len, ids))
    found = arrays_of([shown for _, shown in rows], forest.places, forest.num_tokens, vision)
    for (own, shown), at in zip(rows, forest.places, strict=True):
        alone = rope_positions(len(own), [(one.position, one.grid) for one in shown], vision.merge)
        assert (found.rope[:, at] == alone).all()
    feature_of = {int(at): place // 2 for place, at in enumerate(found.places)}  # two features each
    fed = found.patches.reshape(len(found.grids), -1)
    for (_, shown), at in zip(rows, forest.places, strict=True):
        for one in shown:
            [which] = {feature_of[int(token)] for token in at[one.position : one.position + 2]}
            assert (fed[which] == patches(picture(one.digest.encode(), width=16).rgb, vision).ravel()).all()
    assert len(found.grids) == 4, "a, b and c, and b again where other ids precede it"


def test_without_a_picture_one_black_token_is_fed_that_belongs_nowhere(vision: Vision) -> None:
    found = arrays_of([[], []], [np.arange(4), np.arange(4, 6)], 6, vision)
    assert found.grids.tolist() == [[1, 2, 2]] and len(found.patches) == 4 and not found.patches.any()
    assert not len(found.places) and found.rope.tolist() == [[0, 1, 2, 3, 0, 1]] * 3


def test_a_row_that_ends_within_a_picture_is_refused(vision: Vision) -> None:
    ids, shown = row(vision, "a", 0)
    with pytest.raises(ValueError, match=f"at index {BEFORE} is not whole in a row of {BEFORE + 1} ids"):
        arrays_of([shown], [np.arange(BEFORE + 1)], len(ids), vision)
