"""Which format a model has: by its architecture and its template, never by a path; and who refuses which."""

from __future__ import annotations

from pathlib import Path

import pytest

from squelch.actors.formats.choice import chosen, open_format, squelch_turns, stamped
from squelch.actors.formats.families import FAMILIES, NAMES, known_format
from squelch.actors.play.codec import ChatCodec
from squelch.actors.text.shipped_templates import with_format
from tests.actors.formats.made import FILES, folder_of, format_of, needs_package, needs_templates, source
from tests.actors.text.made import CHATML, chatml_bpe, save_folder


@needs_templates
@pytest.mark.parametrize("name", sorted(set(FAMILIES) - {"llama-3", "qwen3.6", "qwen3.8"}))
def test_a_known_model_is_known_by_architecture_and_template_together(name: str) -> None:
    assert known_format(FILES[name][1], source(name)) == name
    assert known_format(FILES[name][1], source(name) + "\n") == name
    assert known_format("gpt2", source(name)) == known_format(FILES[name][1], CHATML) == "own"


@needs_templates
def test_a_folders_name_says_nothing(tmp_path: Path) -> None:
    anything = folder_of("qwen3", tmp_path / "checkpoint-9")
    assert chosen(anything, "auto", True) == "qwen3"
    named = save_folder(tmp_path / "Qwen" / "Qwen3-0.6B", chatml_bpe(), CHATML, model_type="qwen3")
    assert chosen(named, "auto", True) == "own"


def test_squelchs_turns_are_written_with_the_template_alone(tmp_path: Path) -> None:
    folder = save_folder(tmp_path, chatml_bpe(), CHATML)
    assert chosen(folder, "auto", False) == chosen(folder, "own", False) == "own"
    with pytest.raises(ValueError, match=r"model\.format=qwen3 is for environments without a turn format of Squelch"):
        chosen(folder, "qwen3", False)


def test_the_folder_says_which_format_its_model_has(tmp_path: Path) -> None:
    folder, cache = save_folder(tmp_path / "model", chatml_bpe(), CHATML), tmp_path / "cache"
    assert stamped(folder) == "own" and with_format(folder, "own", "own", cache) == folder
    other = with_format(folder, "qwen3", "own", cache)
    assert stamped(other) == "qwen3" and other.name.startswith("model-format-")
    assert (other / "tokenizer.json").resolve() == folder / "tokenizer.json"
    assert chosen(other, "auto", True) == "qwen3" and chosen(other, "own", True) == "own"
    back = with_format(other, "own", stamped(other), cache)
    assert stamped(back) == "own" and isinstance(open_format(back), ChatCodec)
    (folder / "squelch_format.json").write_text('{"format": "klingon"}')
    with pytest.raises(ValueError, match=rf"{folder}.*format='klingon' is none of own, qwen3"):
        open_format(folder)


@needs_package
def test_a_family_cannot_write_squelchs_turns() -> None:
    with pytest.raises(ValueError, match="environment Sokoban has the turn format of Squelch"):
        squelch_turns(format_of("qwen3"), "Sokoban")


def test_every_name_is_one_of_the_settings() -> None:
    from squelch.cluster.config import ModelConfig

    for name in NAMES:
        assert ModelConfig(path="somewhere", format=name).format == name
    for wrong, said in (
        ({"format": "qwen2"}, "format"),
        ({"format": "qwen3"}, r"model\.format=qwen3 is not for model\.path=tiny"),
        ({"format": "qwen3", "path": "x", "warmup": {}}, r"model\.format=qwen3 is not for model\.warmup"),
        ({"keep_reasoning": "template"}, r"model\.keep_reasoning=template removes .* not supported; drop it"),
    ):
        with pytest.raises(ValueError, match=said):
            ModelConfig.model_validate(wrong)
