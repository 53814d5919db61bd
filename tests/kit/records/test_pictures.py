"""Pictures in observations: their identity is their pixels, and text around them stays where it is."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squelch.envs.config import FormatConfig
from squelch.envs.episode import Episode
from squelch.envs.registry import make
from squelch.kit.records.pictures import Picture, Shown, shown_of


def coloured(value: int, height: int = 2, width: int = 3) -> Picture:
    return Picture(np.full((height, width, 3), value, np.uint8))


def test_a_pictures_identity_is_its_pixels_and_its_size() -> None:
    assert coloured(1) == coloured(1) and hash(coloured(1)) == hash(coloured(1))
    same_bytes = [coloured(1), coloured(1, 3, 2), coloured(1, 1, 6), coloured(2)]
    assert len({one.identity for one in same_bytes}) == 4
    turned = np.full((3, 2, 3), 1, np.uint8).transpose(1, 0, 2)
    assert Picture(turned) == coloured(1) and coloured(1).size == (3, 2)


def test_a_picture_keeps_its_pixels_when_the_renderer_draws_again() -> None:
    canvas = np.zeros((2, 2, 3), np.uint8)
    picture = Picture(canvas)
    canvas[:] = 9
    assert not picture.rgb.any() and not picture.rgb.flags.writeable


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros((2, 2), np.uint8),
        np.zeros((2, 2, 4), np.uint8),
        np.zeros((2, 2, 3)),
        np.zeros((0, 2, 3), np.uint8),
        None,
    ],
)
def test_what_is_no_picture_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="height, width, 3"):
        Picture(wrong)


@given(st.lists(st.one_of(st.text(max_size=3), st.integers(0, 3).map(coloured)), max_size=8))
def test_parts_stay_in_their_order_and_text_alone_is_text(parts: list) -> None:
    found = Shown.of(*parts)
    pictures = tuple(part for part in parts if isinstance(part, Picture))
    text = "".join(part for part in parts if isinstance(part, str))
    if not pictures:
        assert found == text
        return
    assert isinstance(found, Shown) and found.pictures == pictures and found.text == text
    assert Shown.of(found) == found and "" not in found.parts
    assert not any(isinstance(a, str) and isinstance(b, str) for a, b in itertools.pairwise(found.parts))


@pytest.mark.parametrize("wrong", [None, 3, b"x", np.zeros((2, 2, 3), np.uint8), Shown((1,))])
def test_an_observation_of_another_kind_is_refused_with_the_method(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"step\(\) returned the observation .* must be text"):
        shown_of(wrong, "step")


def test_a_message_has_the_picture_where_the_observation_has_it() -> None:
    env = make("FrozenLake", options={"observation_format": "picture", "cell_pixels": 8}, prompt="natural")
    episode = Episode(env, 3, 1, FormatConfig())
    system, first = episode.start()
    assert isinstance(system["content"], str)
    before, picture, after = first["content"].parts
    assert before == "State:\n" and after == "\nActions left: 10" and picture.size == (32, 32)
    following = episode.act("</think> <answer> Left </answer>").next_message
    assert following["content"].text.startswith("Reward: 0.0\nState:\n") and len(following["content"].pictures) == 1
