"""Which format a model has: by its architecture and its template, never by a path; and who refuses which."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from squelch.actors.formats.choice import chosen, open_format, squelch_turns, stamped
from squelch.actors.formats.families import FAMILIES, NAMES, known_format
from squelch.actors.play.codec import ChatCodec
from squelch.kit.base.errors import UserError
from squelch.kit.text.shipped_templates import with_stamp, with_template
from squelch.kit.text.stamp import Stamp, read_stamp
from tests.actors.formats.made import FILES, folder_of, format_of, needs_package, needs_templates, source
from tests.kit.text.made import CHATML, chatml_bpe, save_folder


@needs_templates
@pytest.mark.parametrize("name", sorted(set(FAMILIES) - {"llama-3", "qwen3.6", "qwen3.8"}))
def test_a_known_model_is_known_by_architecture_and_template_together(name: str) -> None:
    assert known_format(FILES[name][1], source(name)) == name
    assert known_format(FILES[name][1], source(name) + "\n") == name
    assert known_format("gpt2", source(name)) == known_format(FILES[name][1], CHATML) == "own"


@needs_templates
def test_a_folders_name_says_nothing(tmp_path: Path) -> None:
    anything = folder_of("qwen3", tmp_path / "checkpoint-9")
    assert chosen(anything, "auto").format == "qwen3"
    named = save_folder(tmp_path / "Qwen" / "Qwen3-0.6B", chatml_bpe(), CHATML, model_type="qwen3")
    assert chosen(named, "auto").format == "own"


def test_squelchs_turns_are_written_with_the_template_alone(tmp_path: Path) -> None:
    folder = save_folder(tmp_path, chatml_bpe(), CHATML)
    theirs = ["Sokoban", "lake"]
    assert chosen(folder, "auto", theirs) == chosen(folder, "own", theirs) == Stamp()
    for settings, key in (
        (("qwen3", theirs), "format=qwen3"),
        (("auto", theirs, "template"), "keep_reasoning=template"),
        (("auto", theirs, "all", "before_answer", "####"), "reasoning=before_answer"),
    ):
        said = rf"model\.{key} is for environments without a turn format of Squelch.* not for Sokoban, lake; leave"
        with pytest.raises(ValueError, match=said):
            chosen(folder, *settings)


def test_the_folder_says_which_format_its_model_has(tmp_path: Path) -> None:
    folder, cache = save_folder(tmp_path / "model", chatml_bpe(), CHATML), tmp_path / "cache"
    assert stamped(folder) == Stamp() and with_stamp(folder, Stamp(), cache) == folder
    other = with_stamp(folder, chosen(folder, "qwen3", keep_reasoning="template"), cache)
    assert stamped(other)[:2] == ("qwen3", "template") and other.name.startswith("model-format-")
    assert (other / "tokenizer.json").resolve() == folder / "tokenizer.json"
    assert chosen(other, "auto").format == "qwen3" and chosen(other, "own") == Stamp()
    back = with_stamp(other, chosen(other, "own"), cache)
    assert stamped(back) == Stamp() and isinstance(open_format(back), ChatCodec)
    again = with_stamp(back, Stamp("own", "template"), cache)
    assert not open_format(again).keeps_reasoning and open_format(back).keeps_reasoning
    divided = open_format(with_stamp(back, chosen(back, "own", reasoning="before_answer", answer="####"), cache))
    assert divided.answer_start is not None and divided.answer_start.pattern == "####"
    assert open_format(back).reasoning == "marked" and open_format(back).answer_start is None
    for text, said in (
        ('{"format": "klingon"}', "format='klingon' is none of own, qwen3"),
        ('{"keep_reasoning": "some"}', "keep_reasoning='some' is none of all, template"),
        ('{"reasoning": "there"}', "reasoning='there' is none of marked, before_answer, completion"),
    ):
        (folder / "squelch_format.json").write_text(text)
        with pytest.raises(ValueError, match=rf"{folder}.*{said}"):
            open_format(folder)


def test_squelchs_turns_keep_their_reasoning(tmp_path: Path) -> None:
    one = ChatCodec(save_folder(tmp_path, chatml_bpe(), CHATML), keeps_reasoning=False)
    with pytest.raises(ValueError, match=r"Sokoban has .* keep their reasoning; drop model\.keep_reasoning=template"):
        squelch_turns(one, "Sokoban")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["model.reasoning=before_answer"], "before_answer needs the text with which answers begin"),
        (["model.answer='####'"], "model.reasoning=marked with model.answer='####'"),
        (["model.reasoning=before_answer", "model.answer='re:('"], "missing"),
        (["model.reasoning=there"], "reasoning"),
        (["model.reasoning=completion"], r"set scorer\.probe\.every=0"),
    ],
)
def test_what_finds_answers_is_checked_before_anything_starts(settings: list[str], says: str) -> None:
    from squelch.cluster.config import load

    with pytest.raises(UserError, match=says):
        load("prompts", ["model.path=somewhere", *settings])
    found = load("prompts", ["model.path=somewhere", "model.reasoning=before_answer", r"model.answer='\boxed{'"])
    assert found.model.answer == r"\boxed{"


def test_an_algorithm_with_a_critic_takes_no_segments() -> None:
    from squelch.cluster.config import load

    segments = ["model.path=somewhere", "model.keep_reasoning=template"]
    with pytest.raises(UserError, match=r"keep_reasoning=template makes trajectories of several segments.* a critic"):
        load("frozenlake", [*segments, "learner.algorithm=ppo"])
    assert load("frozenlake", [*segments, "learner.algorithm=grpo"]).model.keep_reasoning == "template"


def test_a_stamp_counts_only_for_the_template_for_which_it_was_made(tmp_path: Path) -> None:
    folder, cache = save_folder(tmp_path / "model", chatml_bpe(), CHATML), tmp_path / "cache"
    named = with_stamp(folder, chosen(folder, "qwen3"), cache)
    (tmp_path / "other.jinja").write_text(CHATML.replace("assistant\n", "assistant\n<think>\n"))
    replaced = with_template(named, str(tmp_path / "other.jinja"), cache)
    assert stamped(replaced).format == "qwen3" and chosen(replaced, "auto").format == "own"
    assert stamped(with_stamp(replaced, chosen(replaced, "auto"), cache)) == Stamp()
    (tmp_path / "same.jinja").write_text(CHATML + "\n")
    assert chosen(with_template(named, str(tmp_path / "same.jinja"), cache), "auto").format == "qwen3"
    assert chosen(replaced, "qwen3").format == "qwen3", "which the comparison with the template refuses at the start"


@pytest.mark.parametrize("stamp", [{"date": "yesterday"}, {"date": 5}, {"format": ["own"]}])
def test_a_damaged_stamp_is_refused_with_its_file(tmp_path: Path, stamp: dict[str, object]) -> None:
    (tmp_path / "squelch_format.json").write_text(json.dumps(stamp))
    with pytest.raises(ValueError, match=f"{tmp_path}/squelch_format.json: .*must be"):
        read_stamp(tmp_path)


@needs_package
def test_a_family_cannot_write_squelchs_turns() -> None:
    with pytest.raises(ValueError, match="environment Sokoban has the turn format of Squelch"):
        squelch_turns(format_of("qwen3"), "Sokoban")


def test_every_name_is_one_of_the_settings() -> None:
    from squelch.cluster.loop_config import ModelConfig

    for name in NAMES:
        assert ModelConfig(path="somewhere", format=name).format == name
    for wrong, said in (
        ({"format": "qwen2"}, "format"),
        ({"format": "qwen3"}, r"model\.format=qwen3 is not for model\.path=tiny"),
        ({"format": "qwen3", "path": "x", "warmup": {}}, r"model\.format=qwen3 is not for model\.warmup"),
        ({"keep_reasoning": "template"}, r"model\.keep_reasoning=template is not for model\.path=tiny"),
        ({"keep_reasoning": "template", "path": "x", "warmup": {}}, r"=template is not for model\.warmup"),
    ):
        with pytest.raises(ValueError, match=said):
            ModelConfig.model_validate(wrong)
