"""Prompts have one content key if and only if they show the same ids and the same pictures at the same places."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from squelch.kit.records.content import Picture, content_key, pictures_within
from tests.pictures import placed

PICTURES = st.lists(st.builds(placed, st.integers(0, 3), st.binary(max_size=3)), max_size=3)
PROMPTS = st.tuples(
    st.lists(st.integers(0, 3), max_size=4), PICTURES.map(lambda ps: list({p.position: p for p in ps}.values()))
)


def shown(prompt) -> tuple:
    ids, pictures = prompt
    return tuple(ids), frozenset((p.position, p.data) for p in pictures)


@given(PROMPTS, PROMPTS)
def test_keys_are_equal_exactly_when_what_is_shown_is(one, other):
    keys = [content_key(np.array(ids, dtype=np.int64), pictures) for ids, pictures in (one, other)]
    assert (keys[0] == keys[1]) == (shown(one) == shown(other))


def test_a_key_does_not_depend_on_where_the_bytes_lie_or_on_the_type_of_the_ids():
    inside = placed(1, b"\x89PNG")
    outside = Picture(1, "image/png", inside.digest, reference=f"pictures/{inside.digest}.png")
    keys = [content_key(np.array([5, 9], dtype=t), [p]) for t in (np.int32, np.int64) for p in (inside, outside)]
    assert len(set(keys)) == 1 and len(keys[0]) == 32


def test_a_key_stays_the_same_over_versions_and_machines():
    assert content_key(np.array([1, 2, 3])) == "64f009aeba1a7dc266452974f635d1c2"


def test_a_part_of_a_sequence_has_the_pictures_in_it_and_the_key_of_the_same_content_elsewhere():
    ids, picture = np.arange(6, dtype=np.int32), placed(3, b"x")
    assert pictures_within([picture], 0, 3) == () and pictures_within([picture], 0, 5) == (picture,)
    elsewhere = placed(1, b"x")
    assert content_key(ids[2:5], pictures_within([picture], 2, 5)) == content_key(ids[2:5], [elsewhere])
