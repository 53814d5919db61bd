import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.kit.packed.packing import MIN_SAVED, added_tokens, pack
from squelch.kit.records.content import content_key
from squelch.kit.records.shared_prefix import common_lengths, identities, in_order
from tests.pictures import placed

PIECE = st.lists(st.integers(0, 2), min_size=1, max_size=40)
ROWS = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), min_size=1, max_size=14)


@st.composite
def trees(draw: st.DrawFn) -> list[np.ndarray]:
    """Rows made of pieces from a small stock, so that many begin alike, some are equal, some end inside others."""
    stock = draw(st.lists(PIECE, min_size=6, max_size=6))
    rows = [np.concatenate([stock[k] for k in row]) for row in draw(ROWS)]
    cut = draw(st.integers(1, 60))
    return [*rows, rows[0][:cut]]


def visible(rows: list[np.ndarray], places: tuple[np.ndarray, ...], size: int) -> np.ndarray:
    """(size, size): which token sees which, from the rows alone."""
    seen = np.zeros((size, size), dtype=bool)
    for row, place in zip(rows, places, strict=True):
        for k in range(len(row)):
            seen[place[k], place[: k + 1]] = True
    return seen


@settings(deadline=None)
@given(trees(), st.booleans())
def test_every_row_is_its_path_and_a_token_sees_its_row_so_far_and_nothing_else(
    rows: list[np.ndarray], share: bool
) -> None:
    forest = pack(rows, share)
    for row, place in zip(rows, forest.places, strict=True):
        assert (forest.token_ids[place] == row).all()
        assert (forest.position_ids[place] == np.arange(len(row))).all()
    seen = visible(rows, forest.places, forest.num_tokens)
    index = np.arange(forest.num_tokens)
    assert (seen == ((index <= index[:, None]) & (index[:, None] < forest.ends))).all()
    attended = np.zeros_like(seen, dtype=int)
    for start, end in forest.segments:
        attended[start:end, start:end] += np.tri(end - start, dtype=int)
    for link in forest.links:
        for start, end in link.context:
            attended[link.queries[0] : link.queries[1], start:end] += 1
    assert (attended == seen).all()
    assert forest.pairs() == seen.sum()


@settings(deadline=None)
@given(trees())
def test_a_layout_holds_no_more_than_its_rows_add_and_no_less_than_what_differs(rows: list[np.ndarray]) -> None:
    ordered = [rows[i] for i in in_order(rows)]
    lengths, common = np.array([len(row) for row in ordered]), common_lengths(ordered)
    size = pack(rows).num_tokens
    assert (lengths - common).sum() <= size <= added_tokens(lengths, common).sum()
    assert size == (lengths - common).sum() or (common > 0).any()


def test_a_group_shares_its_prompt_groups_their_system_prompt_and_answers_their_beginnings() -> None:
    system, answer = np.arange(30), 100 + np.arange(20)
    prompts = [np.concatenate([system, 50 + k + np.arange(25)]) for k in range(2)]
    rows = [np.concatenate([prompt, [200 + i]]) for prompt in prompts for i in range(4)]
    rows += [np.concatenate([prompts[0], answer, [300 + i]]) for i in range(2)]
    forest = pack(rows)
    assert forest.num_tokens == 30 + 2 * 25 + 8 + 20 + 2
    assert len(forest.segments) == 1 + 2 + 8 + 1 + 2
    assert len(forest.links) == 2 + 2 + 1  # prompts; what follows each; what follows the common beginning


@settings(deadline=None)
@given(trees(), st.data())
def test_rows_share_tokens_up_to_the_first_picture_that_differs(rows: list[np.ndarray], data: st.DataObject) -> None:
    kinds = [placed(0, bytes([kind])) for kind in range(2)]
    places = st.lists(st.tuples(st.integers(0, 30), st.sampled_from(kinds)), max_size=2, unique_by=lambda pair: pair[0])
    pictures = [
        [dataclasses.replace(picture, position=place) for place, picture in data.draw(places) if place < len(row)]
        for row in rows
    ]
    forest = pack(rows, True, identities(rows, pictures))
    assert all((forest.token_ids[place] == row).all() for row, place in zip(rows, forest.places, strict=True))
    seen: dict[int, str] = {}
    for row, place, shown in zip(rows, forest.places, pictures, strict=True):
        for k, where in enumerate(place.tolist()):
            key = content_key(row[: k + 1], [picture for picture in shown if picture.position <= k])
            assert seen.setdefault(where, key) == key, "a shared token has one context: the same ids and pictures"


def test_equal_rows_share_all_of_it_with_one_picture_and_nothing_behind_two() -> None:
    row = np.arange(50)
    one, other = (placed(20, data) for data in (b"one", b"other"))
    assert pack([row] * 2, True, identities([row] * 2, [[one], [one]])).num_tokens == 50
    assert pack([row] * 2, True, identities([row] * 2, [[one], [other]])).num_tokens == 20 + 2 * 30
    assert pack([row] * 2, True, identities([row] * 2, [[one], []])).num_tokens == 20 + 2 * 30


def test_what_saves_too_little_is_repeated() -> None:
    few = np.arange(MIN_SAVED - 1)
    rows = [np.append(few, 90 + i) for i in range(2)]
    assert len(pack(rows).segments) == 2
    assert len(pack([*rows, np.append(few, 99)]).segments) == 4
