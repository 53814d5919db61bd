"""`squelch score`: a prompt that is text is taken as rendered; in messages only the template writes control tokens."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from squelch.cluster.cli import main
from squelch.kit.api.samples import Reasonings
from squelch.kit.base.errors import UserError
from squelch.kit.readers.score_files import Reader
from squelch.kit.text.chat_template import read_chat_tokenizer
from tests.kit.text.made import CHATML, CHATML_TOKENS, HOSTILE, NOT_SPECIAL, chatml_bpe, metaspace, save_folder

CONTROL = {*CHATML_TOKENS, *NOT_SPECIAL} - {"<think>", "</think>"}
STRIPS_HISTORY = CHATML.replace(
    "m.content",
    "m.content.split('</think>')[-1].lstrip('\n') if m.role == 'assistant' and '</think>' in m.content else m.content",
)
HISTORY = [
    {"role": "system", "content": "Think between <think> and </think> ."},
    {"role": "user", "content": " go up\n"},
    {"role": "assistant", "content": "<think>\na passage</think>\n\nthe goal"},
    {"role": "user", "content": "x < y > z"},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_folder(tmp_path / "model", chatml_bpe(), STRIPS_HISTORY)


def read(folder: Path, *rows: dict[str, Any], markers: tuple[str, str] | None = ("<think>", "</think>")) -> Reasonings:
    keys = ("prompt", "completion", "reasoning", "prompt_ids", "reasoning_ids", "prompt_id", "step")
    named = [(number, dict.fromkeys(keys) | row) for number, row in enumerate(rows, start=1)]
    return Reader(Path("rows.jsonl"), folder, 10_000, markers).read(named)


def control(folder: Path, ids: Any) -> list[str]:
    tokenizer = read_chat_tokenizer(folder).backend_tokenizer
    names = [tokenizer.id_to_token(int(index)) for index in ids]
    return [name for name in names if name in CONTROL]


def test_ordinary_messages_have_the_ids_of_the_whole_rendered_conversation(folder: Path) -> None:
    tokenizer = read_chat_tokenizer(folder)
    text = str(tokenizer.apply_chat_template(HISTORY, tokenize=False, add_generation_prompt=True)) + "<think>"
    assert "a passage" not in text, "the template strips old reasoning"
    found = read(folder, {"prompt": HISTORY, "completion": "<think>b</think>"})
    assert found.prompts[0].tolist() == tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
    assert not found.control_tokens


def test_a_message_yields_no_control_token(folder: Path) -> None:
    spoken = [[{"role": "system", "content": "go"}, {"role": "user", "content": text}] for text in HOSTILE]
    found = read(folder, *({"prompt": messages, "completion": "<think>b</think>"} for messages in spoken))
    tokenizer = read_chat_tokenizer(folder).backend_tokenizer
    for text, ids in zip(HOSTILE, found.prompts, strict=True):
        assert control(folder, ids) == ["<|im_start|>", "<|im_end|>"] * 2 + ["<|im_start|>"], text
        assert tokenizer.decode(ids.tolist(), skip_special_tokens=False) == (
            f"<|im_start|>system\ngo<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n<think>"
        )


def test_two_messages_cannot_complete_a_control_token_together(tmp_path: Path) -> None:
    folder = save_folder(tmp_path, chatml_bpe(), "{% for m in messages %}{{ m.content }}{% endfor %}<|im_end|>")
    messages = [{"role": "user", "content": text} for text in ("go <|im_", "start|> up <|im_", "end|>")]
    found = read(folder, {"prompt": messages, "completion": "<think>b</think>"}).prompts[0]
    assert control(folder, found) == ["<|im_end|>"]


def test_a_prompt_that_is_text_is_rendered_already_and_its_control_tokens_are_counted(folder: Path) -> None:
    prompt = "<|im_start|>user\n<|im_end|> go<|im_end|>\n<|im_start|>assistant\n"
    found = read(folder, *({"prompt": prompt, "completion": f"<think>{text}</think>"} for text in "ab"))
    assert control(folder, found.prompts[0]) == ["<|im_start|>", "<|im_end|>", "<|im_end|>", "<|im_start|>"]
    assert found.control_tokens == {"<|im_start|>": 2, "<|im_end|>": 2}


def test_the_count_is_reported(tmp_path: Path, tiny_policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"prompt": f"<|user|> go {way}<|end|><|assistant|>", "reasoning": " go"} for way in ("up", "left")]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["score", str(file), "--model", str(tiny_policy), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["control_tokens"] == {"<|user|>": 2, "<|end|>": 2, "<|assistant|>": 2}
    assert main(["score", str(file), "--model", str(tiny_policy)]) == 0
    assert "control tokens in them: <|user|> 2, <|end|> 2, <|assistant|> 2" in capsys.readouterr().out


def test_a_spoken_completion_yields_no_control_token_and_a_logged_one_does(folder: Path) -> None:
    said = "<think>a <|im_end|> b</think>"
    for completion, expected in ((said, ["<|im_end|>"]), ([{"role": "assistant", "content": said}], [])):
        found = read(folder, {"prompt": "go", "completion": completion})
        assert control(folder, found.ids[0]) == expected


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"role": "user<|im_end|>", "content": "a"}, "row 2: `role` of a message holds the control token '<|im_end|>'"),
        ({"role": "user", "content": "a", "tool_calls": [{"<|im_end|>": 1}]}, "row 2: `tool_calls` of a message"),
        ({"role": "", "content": None}, "row 2: the chat template of"),
    ],
)
def test_messages_that_cannot_be_rendered_are_refused_with_their_row(folder: Path, message: dict, said: str) -> None:
    (folder / "chat_template.jinja").write_text(CHATML.replace("m.content", "m.content.strip()"))
    fine = {"prompt": HISTORY, "completion": "<think>b</think>"}
    with pytest.raises(UserError, match=re.escape("rows.jsonl, " + said)):
        read(folder, fine, {"prompt": [message], "completion": "<think>b</think>"})


def test_messages_need_a_template_that_ends(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"prompt": HISTORY, "completion": "<think>b</think>"}
    (folder / "chat_template.jinja").write_text("{{ 'a' * 10 ** 10 }}")
    with pytest.raises(UserError, match=r"rows\.jsonl, row 1: the chat template of"):
        read(folder, row)
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(UserError, match=r"prompts are messages.* has no chat template of its own"):
        read(folder, row)


def test_a_tokenizers_own_truncation_is_not_obeyed(tmp_path: Path) -> None:
    tokenizer = chatml_bpe()
    whole = save_folder(tmp_path / "whole", tokenizer)
    tokenizer.enable_truncation(8)
    cut = save_folder(tmp_path / "cut", tokenizer)
    rows = [{"prompt": "go up " * 50, "reasoning": "the goal " * 50}, {"prompt": HISTORY, "reasoning": "x"}]
    one, other = (read(folder, *rows) for folder in (whole, cut))
    assert [ids.tolist() for ids in one.prompts + one.ids] == [ids.tolist() for ids in other.prompts + other.ids]


def test_other_kinds_of_tokenizer_keep_their_ids(tmp_path: Path) -> None:
    folder = save_folder(tmp_path, metaspace())
    found = read(folder, {"prompt": HISTORY[:2], "reasoning": " the goal", "completion": None}, markers=None)
    tokenizer = read_chat_tokenizer(folder)
    text = str(tokenizer.apply_chat_template(HISTORY[:2], tokenize=False, add_generation_prompt=True))
    assert found.prompts[0].tolist() == tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
