"""Model folders of each family: a small tokenizer with the family's control tokens, and the family's chat template."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from squelch.actors.formats.families import FAMILIES
from squelch.actors.formats.packaged import PackagedFormat, is_installed
from tests.kit.text.made import CHATML, CORPUS, save_folder

TEMPLATES = Path(__file__).parents[3] / ".cache" / "trl" / "trl" / "chat_templates"
"""Chat templates of many models, as the models' folders have them; they come with TRL (`deploy/setup.sh trl`)."""
FILES = {
    "qwen3": ("qwen3", "qwen3"),
    "qwen3.5": ("qwen3_5_think", "qwen3_5"),
    "qwen3.6": ("qwen3_6", "qwen3_5"),
    "qwen3.8": ("qwen3_8", "qwen3_5"),
    "llama-3": ("llama3_2", "llama"),
    "glm-4.5": ("glm4moe", "glm4_moe"),
    "deepseek-r1": ("deepseek_r1_distill", "qwen2"),
    "nemotron-3": ("nemotron_3_nano", "nemotron_h"),
    "nemotron-3-ultra": ("nemotron_3_ultra", "nemotron_h"),
    "nemotron-3.5": ("nemotron_3_5_lightning", "nemotron_h"),
}
"""File of the template, and the architecture, of each family."""
ENDS = {
    "llama-3": ("<|begin_of_text|>", "<|eot_id|>"),
    "deepseek-r1": ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
}
"""Tokens at the beginning of a text and at its end; other families have none and `<|endoftext|>`."""
SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"),
    *("<|video_pad|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>"),
    *("<|end_of_text|>", "[gMASK]", "<sop>", "<|user|>", "<|system|>", "<|assistant|>", "<|observation|>"),
    *("<｜User｜>", "<｜Assistant｜>", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜tool▁calls▁begin｜>"),
    *("<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁outputs▁begin｜>"),
    *("<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>", "<｜tool▁sep｜>"),
)
MARKS = ("think", "tool_call", "tool_response", "arg_key", "arg_value")

needs_package = pytest.mark.skipif(
    not is_installed(), reason="renderers is not installed: run deploy/setup.sh renderers"
)
needs_templates = pytest.mark.skipif(not TEMPLATES.is_dir(), reason="TRL is not installed: run deploy/setup.sh trl")
families = pytest.mark.parametrize("name", FAMILIES)


def source(name: str) -> str:
    """A family's chat template; another one where TRL is not installed."""
    path = TEMPLATES / f"{FILES[name][0]}.jinja"
    return path.read_text() if path.is_file() else CHATML


@cache
def tokenizer() -> Tokenizer:
    """A byte-level BPE that has the control tokens of all families."""
    found = Tokenizer(models.BPE())
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    found.train_from_iterator(
        [*CORPUS, "You may call one or more functions to assist with the user query."] * 2, trainer
    )
    found.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    marks = [f"<{slash}{name}>" for name in MARKS for slash in ("", "/")]
    found.add_tokens([AddedToken(name, special=False, normalized=False) for name in marks])
    return found


def folder_of(name: str, folder: Path, template: str | None = None, tokens: Tokenizer | None = None) -> Path:
    """A model folder of the family, without weights."""
    architecture = FILES[name][1]
    save_folder(folder, tokens or tokenizer(), source(name) if template is None else template, model_type=architecture)
    begin, end = ENDS.get(name, (None, "<|endoftext|>"))
    settings = {"tokenizer_class": "TokenizersBackend", "eos_token": end} | ({"bos_token": begin} if begin else {})
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@cache
def format_of(name: str) -> PackagedFormat:
    """The family's format, made once."""
    return PackagedFormat(folder_of(name, Path(mkdtemp())), name)


def control_of(one: PackagedFormat, ids: list[int]) -> list[str]:
    """The control tokens among the ids, in order."""
    return [one.encoder.control[index] for index in ids if index in one.encoder.control]


def without(text: str) -> Tokenizer:
    """The tokenizer without one token."""
    known = json.loads(tokenizer().to_str())
    known["added_tokens"] = [one for one in known["added_tokens"] if one["content"] != text]
    assert not re.search(re.escape(text), json.dumps(known["model"]["vocab"], ensure_ascii=False))
    return Tokenizer.from_str(json.dumps(known))
