import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.kernels.packing import MIN_SAVED, added_tokens, common_lengths, in_order, pack

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


def test_what_saves_too_little_is_repeated() -> None:
    few = np.arange(MIN_SAVED - 1)
    rows = [np.append(few, 90 + i) for i in range(2)]
    assert len(pack(rows).segments) == 2
    assert len(pack([*rows, np.append(few, 99)]).segments) == 4
