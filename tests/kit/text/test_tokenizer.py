"""A tokenizer encodes whole texts, whatever its folder asks for; files that cannot be trusted are refused by name."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from squelch.actors.play.codec import ChatCodec
from squelch.actors.scorer.fixed_model import check_scorer_model
from squelch.kit.text import script_process
from squelch.kit.text import tokenizer as module
from squelch.kit.text.chat_template import read_chat_tokenizer
from squelch.kit.text.tokenizer import check_vocabulary, read_tokenizer, try_tokenizer, unknown_id
from squelch.kit.untrusted.files import Unreadable, decoding
from tests.kit.text.made import TOKENIZERS, chatml_bpe, save_folder

MESSAGES = [{"role": "system", "content": "go up " * 40}, {"role": "user", "content": "goal " * 40}]

pytestmark = pytest.mark.usefixtures("rendered_here")


def cutting() -> Tokenizer:
    """A tokenizer that cuts texts to 16 tokens and pads them to 64."""
    tokenizer = chatml_bpe()
    tokenizer.enable_truncation(16)
    tokenizer.enable_padding(length=64, pad_id=0, pad_token="<|endoftext|>")
    return tokenizer


def test_truncation_and_padding_of_the_folder_are_switched_off(tmp_path: Path) -> None:
    text = "go up " * 100
    cut, whole = save_folder(tmp_path / "cut", cutting()), save_folder(tmp_path / "whole", chatml_bpe())
    assert len(Tokenizer.from_file(str(cut / "tokenizer.json")).encode(text).ids) == 64, "the setting has no effect"
    for read in (read_tokenizer, lambda folder: read_chat_tokenizer(folder).backend_tokenizer):
        assert read(cut).encode(text).ids == read(whole).encode(text).ids
        assert read(cut).encode("go").ids == read(whole).encode("go").ids
    codecs = [ChatCodec(folder) for folder in (cut, whole)]
    first, other = (codec.first_turn(MESSAGES).tolist() for codec in codecs)
    assert first == other and len(first) > 64
    first, other = (codec.next_turn(MESSAGES[1], closed=True).tolist() for codec in codecs)
    assert first == other


@pytest.mark.parametrize("key", ["tokenizer_truncation", "split_special_tokens"])
def test_the_same_settings_in_tokenizer_config_are_switched_off(tmp_path: Path, key: str) -> None:
    whole = ChatCodec(save_folder(tmp_path / "whole", chatml_bpe())).first_turn(MESSAGES)
    folder = save_folder(tmp_path / "cut", chatml_bpe())
    path = folder / "tokenizer_config.json"
    cut = {"max_length": 16, "stride": 0, "strategy": "longest_first", "direction": "right"}
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: cut if key.startswith("tok") else True}))
    assert ChatCodec(folder).first_turn(MESSAGES).tolist() == whole.tolist()


def test_dropout_of_the_folder_is_switched_off(tmp_path: Path) -> None:
    tokenizer = chatml_bpe()
    whole = tokenizer.encode(" the goal" * 20).ids
    tokenizer.model.dropout = 0.9
    assert tokenizer.encode(" the goal" * 20).ids != whole
    assert read_tokenizer(save_folder(tmp_path, tokenizer)).encode(" the goal" * 20).ids == whole


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("tokenizer.json", "{", "tokenizer.json"),
        ("tokenizer.json", "[" * 100_000, "tokenizer.json"),
        ("tokenizer.json", '{"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 4294967296}}}', "cannot"),
        ("tokenizer_config.json", "[" * 100_000, "tokenizer_config.json"),
        ("tokenizer_config.json", '{"eos_token": 7}', "tokenizer_config.json"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": 1}}', "tokenizer_config.json"),
        ("config.json", "{", "config.json"),
        ("config.json", "[" * 100_000, "config.json"),
        ("config.json", '["qwen2"]', "one JSON object is needed"),
        ("config.json", '{"vocab_size": ' + "9" * 5000 + "}", "config.json"),
        ("config.json", '{"vocab_size": 4294967296}', "vocab_size"),
        ("config.json", '{"vocab_size": "many"}', "vocab_size"),
        ("config.json", '{"vocab_size": 300}', "no row for it"),
        ("generation_config.json", '{"eos_token_id": 4294967296}', "eos_token_id"),
        ("generation_config.json", '{"eos_token_id": [true]}', "eos_token_id"),
    ],
)
def test_damaged_files_are_refused_in_one_line(tmp_path: Path, name: str, text: str, said: str) -> None:
    folder = save_folder(tmp_path, chatml_bpe())
    (folder / name).write_text(text)
    with pytest.raises(ValueError, match=said) as error:
        ChatCodec(folder)
    assert str(folder) in str(error.value) and len(str(error.value)) < 800 and "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json"])
def test_only_regular_files_of_bounded_size_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = save_folder(tmp_path, chatml_bpe())
    size = (folder / name).stat().st_size
    with (folder / name).open("r+b") as file:
        file.truncate(size + 65 * 2**20)
    with pytest.raises(ValueError, match=rf"{name} is larger than 64 MiB"):
        ChatCodec(folder)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(ValueError, match=r"is a named pipe|holds no tokenizer\.json"):
        ChatCodec(folder)
    assert module.MAX_FILE_BYTES == 64 * 2**20


def test_two_tokens_with_one_id_are_refused(tmp_path: Path) -> None:
    folder = save_folder(tmp_path, TOKENIZERS["whole words"]())
    path = folder / "tokenizer.json"
    found = json.loads(path.read_text())
    found["model"]["vocab"]["goal"] = found["model"]["vocab"]["up"]
    path.write_text(json.dumps(found))
    with pytest.raises(ValueError, match="gives the id 5 to both"):
        check_vocabulary(path, read_tokenizer(folder), 100)


def test_a_fixed_scorers_tokenizer_is_read_within_the_same_bounds(tmp_path: Path) -> None:
    folder, other = (save_folder(tmp_path / name, chatml_bpe()) for name in ("policy", "scorer"))
    check_scorer_model(str(other), folder)
    (other / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match=r"scorer/tokenizer\.json cannot be read"):
        check_scorer_model(str(other), folder)


def test_the_models_own_token_for_unknown_text_is_known() -> None:
    assert {kind: unknown_id(make()) for kind, make in TOKENIZERS.items()} == {
        kind: 0 if kind in ("tiny words", "whole words", "metaspace") else None for kind in TOKENIZERS
    }


def with_normalizer(normalizer: dict[str, object]) -> bytes:
    return json.dumps(json.loads(chatml_bpe().to_str()) | {"normalizer": normalizer}).encode()


PANICS = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
GROWS = {
    "type": "Sequence",
    "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * 40,
}


@pytest.mark.parametrize("normalizer", [PANICS, GROWS], ids=["panics", "grows"])
def test_a_tokenizer_that_panics_or_grows_without_end_is_refused_by_name(
    normalizer: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.trial, "CPU_S", 1)
    data = with_normalizer(normalizer)
    for _ in range(2):  # the second time without another trial
        with pytest.raises(Unreadable, match=r"here cannot be read \(.*; copy the model's files again"):
            try_tokenizer(data, "here")


KILLED_FROM_OUTSIDE = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize(("script", "wait_s"), [("import time; time.sleep(99)", 0.1), (KILLED_FROM_OUTSIDE, 99.0)])
def test_a_trial_that_the_machines_load_ended_is_no_verdict_on_the_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, wait_s: float
) -> None:
    data = chatml_bpe().to_str().encode() + b" " * int(wait_s)  # a file that was not tried before
    (tmp_path / "trial.py").write_text(script)
    with monkeypatch.context() as loaded:
        loaded.setattr(module.trial, "__file__", str(tmp_path / "trial.py"))
        loaded.setattr(script_process, "WAIT_S", wait_s)
        with pytest.raises(Unreadable, match=r"here could not be tried \(.*\): the machine is short of time or memory"):
            try_tokenizer(data, "here")
    try_tokenizer(data, "here")


def test_a_sound_tokenizer_passes_the_trial() -> None:
    for make in TOKENIZERS.values():
        try_tokenizer(make().to_str().encode(), "here")


def test_a_panic_of_a_rust_library_is_a_damaged_file() -> None:
    with pytest.raises(Unreadable, match="here is damaged"), decoding("here", "is damaged"):
        Tokenizer.from_buffer(with_normalizer(PANICS))
    with pytest.raises(KeyboardInterrupt), decoding("here", "is damaged"):
        raise KeyboardInterrupt
