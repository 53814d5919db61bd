"""What sequences share is what they show alike: ids, and pictures where there are any."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.kit.records.content import content_key
from squelch.kit.records.shared_prefix import common_length, common_lengths, distinct, identities, in_order
from tests.pictures import placed

ROW = st.lists(st.integers(0, 2), min_size=1, max_size=6).map(np.array)
PICTURE = st.builds(placed, st.integers(0, 8), st.sampled_from([b"one", b"other"]))
SHOWN = st.tuples(ROW, st.lists(PICTURE, max_size=2, unique_by=lambda picture: picture.position))


def test_of_text_alone_the_ids_are_the_identity() -> None:
    rows = [np.array([1, 2]), np.array([1])]
    assert all(found is row for found, row in zip(identities(rows, [(), ()]), rows, strict=True))


@settings(deadline=None)
@given(st.lists(SHOWN, min_size=1, max_size=6))
def test_identities_are_equal_where_and_only_where_content_keys_are(shown: list[tuple[np.ndarray, list]]) -> None:
    pictures = [[p for p in pictures if p.position < len(row)] for row, pictures in shown]
    rows = [row for row, _ in shown]
    found = identities(rows, [pictures for _, pictures in shown])
    keys = [content_key(row, own) for row, own in zip(rows, pictures, strict=True)]
    for i in range(len(rows)):
        for j in range(len(rows)):
            assert np.array_equal(found[i], found[j]) == (keys[i] == keys[j])


@settings(deadline=None)
@given(st.lists(SHOWN, min_size=1, max_size=6))
def test_a_common_prefix_ends_where_contents_part(shown: list[tuple[np.ndarray, list]]) -> None:
    rows = [row for row, _ in shown]
    found = identities(rows, [pictures for _, pictures in shown])

    def alike(length: int) -> bool:
        return len({content_key(row[:length], [p for p in own if p.position < length]) for row, own in shown}) == 1

    length = common_length(found)
    assert alike(length) and (length == min(map(len, rows)) or not alike(length + 1))


@settings(deadline=None)
@given(st.lists(ROW, min_size=1, max_size=8))
def test_in_order_rows_share_most_with_their_neighbours(rows: list[np.ndarray]) -> None:
    ordered = [rows[i] for i in in_order(rows)]
    assert [row.tolist() for row in ordered] == sorted(row.tolist() for row in rows)
    common = common_lengths(ordered)
    for i in range(1, len(ordered)):
        size = int(common[i])
        assert np.array_equal(ordered[i][:size], ordered[i - 1][:size])
        assert all(common_length([ordered[i], other]) <= size for other in ordered[:i])


def test_distinct_rows_come_in_order_of_appearance_and_only_their_numbers_count() -> None:
    rows = [np.array([1, 0]), np.array([1]), np.array([1, 0], dtype=np.int32), np.array([1, 0, 0])]
    first, inverse = distinct(rows)
    assert first == [0, 1, 3] and inverse.tolist() == [0, 1, 0, 2]
