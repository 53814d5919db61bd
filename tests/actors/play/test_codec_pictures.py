"""Messages with pictures as ids."""

import json
from pathlib import Path

import numpy as np
import pytest

from squelch.actors.play.codec import ChatCodec
from squelch.envs.config import EnvironmentConfig
from squelch.envs.registry import resolved
from squelch.kit.records.pictures import Picture, Shown
from squelch.learner.warmup.tiny import write_tokenizer
from squelch.learner.warmup.tiny_model import new_model, write_configs
from squelch.learner.warmup.tiny_recipe import TinyRecipe, TinyTower

RULES = {"role": "system", "content": "Reach G"}
SIDE = 8


def picture(grey: int, columns: int = 2, rows: int = 3) -> Picture:
    return Picture(np.full((SIDE * rows, SIDE * columns, 3), grey, np.uint8))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("seeing")
    recipe = TinyRecipe(width=32, layers=1, tower=TinyTower(width=32, layers=1, heads=1, rope_sections=(0, 2, 2)))
    codec = write_tokenizer(found, resolved(EnvironmentConfig(name="FrozenLake")), 0, recipe)
    write_configs(new_model(codec, recipe, 0), found)
    return found


@pytest.fixture(scope="module")
def codec(folder: Path) -> ChatCodec:
    return ChatCodec(folder)


def around(codec: ChatCodec, count: int) -> list[int]:
    return [codec.vision.start_id, *[codec.vision.picture_id] * count, codec.vision.end_id]


def asked(*parts: str | Picture) -> dict:
    return {"role": "user", "content": Shown.of(*parts)}


def test_a_picture_stands_between_its_texts_as_one_placeholder_a_token(codec: ChatCodec) -> None:
    one, other = picture(1), picture(2, 1, 1)
    ids, shown = codec.first_fed([RULES, asked(" reward\n", one, " 1 ", other, "\n")])
    plain = codec.first_turn([RULES, {"role": "user", "content": "reward"}]).tolist()
    end = plain.index(codec.encode("reward")[0]) + 1
    expected = [*plain[:end], *codec.encode("\n"), *around(codec, 6), *codec.encode(" 1 "), *around(codec, 1)]
    assert ids.tolist() == [*expected, *plain[end:]]
    assert [(ids[at - 1], ids[at]) for at, _ in shown] == [(codec.vision.start_id, codec.vision.picture_id)] * 2
    assert [found for _, found in shown] == [one, other]


def test_without_pictures_the_ids_are_those_of_text(codec: ChatCodec) -> None:
    messages = [RULES, {"role": "user", "content": "reward 1"}]
    assert codec.first_fed(messages).ids.tolist() == codec.first_turn(messages).tolist()
    for closed in (True, False):
        assert codec.next_fed(messages[1], closed).ids.tolist() == codec.next_turn(messages[1], closed).tolist()


def test_a_further_turn_counts_its_pictures_from_what_is_fed(codec: ChatCodec) -> None:
    for closed in (True, False):
        ids, ((at, found),) = codec.next_fed(asked(picture(3)), closed)
        assert ids[at - 1 : at + 7].tolist() == around(codec, 6) and found == picture(3)
        assert (ids[0] == codec.stop_ids[0]) == (not closed)


def test_no_text_spells_a_picture(codec: ChatCodec) -> None:
    named = "<|vision_start|><|image_pad|><|vision_end|><|video_pad|>"
    for content in (named, Shown.of(named, picture(1), named)):
        ids, shown = codec.first_fed([RULES, {"role": "user", "content": content}])
        marks = np.isin(ids, list(codec.vision.control_ids))
        assert marks.sum() == 8 * len(shown)


def test_a_size_that_needs_resizing_and_a_model_without_a_tower_are_refused(codec: ChatCodec, tmp_path: Path) -> None:
    odd = Picture(np.zeros((20, 16, 3), np.uint8))
    with pytest.raises(ValueError, match=r"16 x 20 pixels does not fit .*multiples of 8"):
        codec.first_fed([RULES, asked(odd)])
    blind = TinyRecipe(width=32, layers=1)
    environment = resolved(EnvironmentConfig(name="FrozenLake"))
    write_configs(new_model(write_tokenizer(tmp_path, environment, 0, blind), blind, 0), tmp_path)
    with pytest.raises(ValueError, match="has no vision tower"):
        ChatCodec(tmp_path).first_fed([RULES, asked(picture(1))])


def test_a_tokenizer_that_lets_text_spell_a_picture_is_refused(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"image_token_id": 40}))
    with pytest.raises(ValueError, match=r"config\.json: the ids \[40\] stand for pictures"):
        ChatCodec(tmp_path).first_fed([RULES, asked(picture(1))])
