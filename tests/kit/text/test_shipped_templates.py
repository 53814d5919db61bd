"""The shipped templates keep every message as it is, and a folder gets one without a copy of its weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from squelch.cluster.config import load
from squelch.kit.base.errors import UserError
from squelch.kit.text import render
from squelch.kit.text.shipped_templates import SHIPPED, SIGNS, fitting, template_text, with_template

THOUGHT = "<think> so\n\nup </think> <answer> Up </answer>"
CHAT = [
    {"role": "system", "content": "  Reach the goal.\n"},
    {"role": "user", "content": "P _ G"},
    {"role": "assistant", "content": THOUGHT},
    {"role": "user", "content": "_ P G"},
]


def model_folder(folder: Path) -> Path:
    folder.mkdir()
    for name, text in {"config.json": "{}", "model.safetensors": "weights", "chat_template.jinja": "own"}.items():
        (folder / name).write_text(text)
    (folder / "additional_chat_templates").mkdir()
    return folder


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_template_shows_every_message_as_it_is_given(name: str) -> None:
    (text,) = render.rendered(template_text(name), [CHAT], {"bos_token": "<s>"})["texts"]
    position = 0
    for one in CHAT:
        position = text.index(one["content"], position) + len(one["content"])
    assert SIGNS[name] in text and fitting(template_text(name)) == name
    assert not text[position:].startswith("\n\n")


def test_chatml_is_the_format_to_the_letter() -> None:
    (text,) = render.rendered(template_text("chatml"), [CHAT[:2]], {})["texts"]
    assert text == (
        "<|im_start|>system\n  Reach the goal.\n<|im_end|>\n<|im_start|>user\nP _ G<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_folder_with_another_template_links_the_weights_and_leaves_the_model_alone(tmp_path: Path) -> None:
    model = model_folder(tmp_path / "model")
    made = with_template(model, "chatml", tmp_path / "cache")
    assert (made / "chat_template.jinja").read_text() == template_text("chatml")
    assert (made / "model.safetensors").is_symlink() and (made / "model.safetensors").read_text() == "weights"
    assert sorted(path.name for path in made.iterdir()) == ["chat_template.jinja", "config.json", "model.safetensors"]
    assert (model / "chat_template.jinja").read_text() == "own"
    assert with_template(model, "chatml", tmp_path / "cache") == made and with_template(model, "", tmp_path) == model
    own = tmp_path / "mine.jinja"
    own.write_text("{{ messages }}")
    other = with_template(model, str(own), tmp_path / "cache")
    assert other != made and (other / "chat_template.jinja").read_text() == "{{ messages }}"


def test_a_template_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"model\.chat_template='chatmll' is neither .* chatml, deepseek"):
        with_template(model_folder(tmp_path / "m"), "chatmll", tmp_path)
    with pytest.raises(UserError, match=r"model\.chat_template is for pretrained models, not for model\.path=tiny"):
        load("frozenlake", ["model.chat_template=chatml"])


def test_a_template_that_is_no_text_is_refused_by_its_setting(tmp_path: Path) -> None:
    (tmp_path / "odd.jinja").write_bytes(b"{{ messages }}\xff")
    with pytest.raises(ValueError, match=r"model\.chat_template='.*odd\.jinja' is no text in UTF-8 .* position 14"):
        with_template(model_folder(tmp_path / "m"), str(tmp_path / "odd.jinja"), tmp_path)


def test_a_model_that_has_other_files_than_before_gets_another_folder(tmp_path: Path) -> None:
    """Found by a reviewer: after the weights were sharded the old folder, with a dangling link, was used."""
    model = model_folder(tmp_path / "model")
    before = with_template(model, "chatml", tmp_path / "cache")
    (model / "model.safetensors").rename(model / "model-00001-of-00001.safetensors")
    (model / "generation_config.json").write_text("{}")
    after = with_template(model, "chatml", tmp_path / "cache")
    assert after != before and (after / "generation_config.json").exists()
    assert (after / "model-00001-of-00001.safetensors").read_text() == "weights"
