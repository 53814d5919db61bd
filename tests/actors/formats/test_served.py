"""The files that an export gets: another program asks for a turn and samples it as the run does."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer, GenerationConfig

from squelch.actors.formats.choice import open_format
from squelch.actors.formats.served import as_played, opened
from squelch.actors.play.codec import ChatCodec
from squelch.kit.text.shipped_templates import template_text
from squelch.kit.text.tokenizer import write_settings
from tests.kit.text.made import TEMPLATES, TOKENIZERS, save_folder

TEXTS = {**{name: TEMPLATES[name] for name in ("chatml", "stripped", "thinking")}, "shipped": template_text("chatml")}
ASKED = [
    {"role": "system", "content": "go up: <think> a </think> <answer> b </answer>"},
    {"role": "user", "content": "up\n1 2"},
]
REPLY, NEXT = " go up </think> <answer> up </answer>", {"role": "user", "content": "down"}


def model(folder: Path, template: str = TEXTS["chatml"]) -> Path:
    own = save_folder(folder / "own", TOKENIZERS["chatml"](), template, vocab_size=1000)
    write_settings(own / "tokenizer_config.json", {"eos_token": "<|endoftext|>"})
    return own


def exported(folder: Path, target: Path, temperature: float = 1.0) -> Path:
    shutil.copytree(folder, target)
    for name, text in as_played(folder, True, temperature).items():
        (target / name).write_text(text)
    return target


@pytest.mark.parametrize("template", TEXTS)
def test_a_plain_chat_is_fed_what_the_run_feeds_and_its_reply_given_back_too(tmp_path: Path, template: str) -> None:
    own = model(tmp_path, TEXTS[template])
    plain, codec = AutoTokenizer.from_pretrained(exported(own, tmp_path / "out")), ChatCodec(own)
    fed = codec.first_turn(ASKED)
    assert plain.apply_chat_template(ASKED, add_generation_prompt=True)["input_ids"] == fed.tolist()
    later = [*ASKED, {"role": "assistant", "content": REPLY}, NEXT]
    fed = np.concatenate([fed, codec.encode(REPLY), codec.next_turn(NEXT, False)])
    text = plain.apply_chat_template(later, add_generation_prompt=True, tokenize=False)
    assert text.split() == plain.decode(fed).split(), "one template ends its opening with a line break"


def test_a_run_that_begins_from_an_export_feeds_what_the_run_before_it_did(tmp_path: Path) -> None:
    own = model(tmp_path)
    before, after = ChatCodec(own), ChatCodec(exported(own, tmp_path / "out"))
    assert after.template_opens and after.first_turn(ASKED).tolist() == before.first_turn(ASKED).tolist()
    assert after.next_turn(NEXT, True).tolist() == before.next_turn(NEXT, True).tolist()
    assert after.stop_ids == before.stop_ids
    again = exported(tmp_path / "out", tmp_path / "again")
    assert (again / "chat_template.jinja").read_text() == (tmp_path / "out" / "chat_template.jinja").read_text()


def test_turns_of_a_models_own_format_keep_its_template(tmp_path: Path) -> None:
    own = model(tmp_path)
    assert set(as_played(own, False, 1.0)) == {"generation_config.json"}


def test_generation_ends_where_the_runs_turns_end_and_cuts_nothing_off_what_it_trained(tmp_path: Path) -> None:
    own = model(tmp_path)
    base = {"eos_token_id": 0, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05, "temperature": 0.7}
    (own / "generation_config.json").write_text(json.dumps(base))
    ends = open_format(own).stop_ids
    assert len(ends) > 1, "the tokenizer's own end is not the one that ends a turn"
    found = GenerationConfig.from_pretrained(exported(own, tmp_path / "out", 0.9))
    found.validate(strict=True)
    assert found.eos_token_id == list(ends) and found.repetition_penalty in (None, 1.0)
    assert (found.do_sample, found.temperature, found.top_p, found.top_k) == (True, 0.9, 1.0, 0)


def test_a_template_is_opened_once() -> None:
    once = opened("{{ 'assistant' }}\n", opens=False)
    assert opened(once, opens=False) == once and once.endswith("}}{% if add_generation_prompt %}<think>{% endif %}")
