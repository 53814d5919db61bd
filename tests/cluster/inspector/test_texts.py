"""Token ids as text for the page."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from squelch.cluster.inspector.texts import BINS, Pieces, bins, shown, tokens_html
from tests.cluster.inspector.small_run import ids, tokenizer

PIECES = Pieces(tokenizer().encode(), "here")


@given(st.text(st.characters(codec="utf-8")))
def test_the_pieces_of_a_text_are_the_escaped_text(text: str) -> None:
    assert "".join(PIECES.html(ids(text))) == shown(text)


@given(st.text(st.characters(codec="utf-8")))
def test_no_text_can_leave_its_element(text: str) -> None:
    found = tokens_html(PIECES.html(ids(text)), np.zeros(len(ids(text))), (0, 0))
    assert found.count("<") == found.count(">") == 2 * len(ids(text))


def test_half_a_character_shows_as_a_replacement_and_spoils_nothing_after_it() -> None:
    assert "".join(PIECES.html(np.array([0xC3, 0x41, 0x42]))) == "\ufffdAB"
    assert "".join(PIECES.html(ids("é")[:1])) == "" and PIECES.text(ids("é")[:1]) == "\ufffd"


def test_colours_go_by_probability() -> None:
    assert bins(np.array([0.0, -0.02, -0.021, -0.2, -0.5, -1.0, -2.0, -4.0, -9.0])) == [0, 0, 1, 2, 3, 4, 5, 6, 7]
    assert len(BINS) == 7


def test_without_a_tokenizer_the_ids_stand_for_themselves() -> None:
    assert Pieces(None, "").text(np.array([3, 5])) == "⟨3⟩⟨5⟩" and not Pieces(None, "").known
