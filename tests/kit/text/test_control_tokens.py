"""Foreign text yields no control token, and text without any keeps its ids."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from squelch.kit.text.control_tokens import TextEncoder, foreign_pieces
from tests.kit.text.made import CHATML_TOKENS, HOSTILE, NOT_SPECIAL, ORDINARY, TOKENIZERS, chatml_bpe

kinds = pytest.mark.parametrize("kind", TOKENIZERS)
plain_texts = st.text(st.characters(codec="utf-8", exclude_characters="<>|[]"), max_size=40) | st.lists(
    st.sampled_from(["go", " up", "\n", "  ", "goal", "é", "1", *ORDINARY]), max_size=8
).map("".join)
fragments = st.sampled_from(
    [
        *CHATML_TOKENS,
        *NOT_SPECIAL,
        *("<|im_", "end|>", "<", "|>", ">", "<|", "im_end", "<|IM_END|>", "＜|im_end|＞", "<unk>", "<|end|>", "</s>"),
        *("<|user|>", "go", " up ", "\n", "\u0338", "\u200b"),
    ]
)
hostile_texts = st.lists(fragments, max_size=8).map("".join) | st.sampled_from(HOSTILE)


@cache
def encoder(kind: str) -> TextEncoder:
    return TextEncoder(TOKENIZERS[kind]())


def framed(kind: str, *contents: str) -> list[tuple[str, bool]]:
    """The contents between the control tokens that the tokenizer has."""
    start, end = ("<|user|>", "<|end|>") if kind.startswith("tiny") else ("<|im_start|>user\n", "<|im_end|>\n")
    return [piece for text in contents for piece in ((start, False), (text, True), (end, False))]


def control_of(kind: str, ids: list[int]) -> list[str]:
    """The control tokens among the ids, without those that stand for unknown words and bytes."""
    names = [encoder(kind).control.get(index, "") for index in ids]
    return [name for name in names if name and name != "<unk>" and not name.startswith("<0x")]


def own(kind: str, pieces: list[tuple[str, bool]]) -> list[int]:
    """What the tokenizer makes of the whole text."""
    return encoder(kind)._tokenizer.encode("".join(text for text, _ in pieces), add_special_tokens=False).ids


@kinds
def test_a_long_text_has_the_ids_and_positions_of_a_short_one(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = framed(kind, *("go  up <|im_end|> é\n" * 3 for _ in range(3)))
    short = encoder(kind).encode_at(pieces)
    monkeypatch.setattr("squelch.kit.text.control_tokens._LONG", 0)
    assert encoder(kind).encode_at(pieces) == short


@kinds
@settings(max_examples=25)
@given(first=plain_texts, second=plain_texts)
def test_text_without_control_tokens_keeps_its_ids(kind: str, first: str, second: str) -> None:
    pieces = framed(kind, first, second)
    assert encoder(kind).encode(pieces) == own(kind, pieces)


@kinds
@settings(max_examples=25)
@given(first=hostile_texts, second=hostile_texts)
def test_foreign_text_yields_no_control_token(kind: str, first: str, second: str) -> None:
    found = control_of(kind, encoder(kind).encode(framed(kind, first, second)))
    marks = control_of(kind, own(kind, framed(kind, ".", ".")))
    if kind in ("single words", "lower case"):  # what stands beside a control token can keep it from being one
        rest = iter(marks)
        assert all(name in rest for name in found)
    else:
        assert found == marks


@settings(max_examples=25)
@given(text=hostile_texts)
def test_cut_text_still_spells_itself(text: str) -> None:
    assume("\u0338" not in text and "＜" not in text)  # the tokenizer's NFC composes them
    pieces = framed("chatml", text)
    tokenizer = encoder("chatml")._tokenizer
    spelled = tokenizer.decode(encoder("chatml").encode(pieces), skip_special_tokens=False)
    assert spelled == "".join(piece for piece, _ in pieces)


def test_hostile_texts_do_what_they_are_about_without_the_encoder() -> None:
    """Otherwise the tests above would prove nothing."""
    harmful = [text for text in HOSTILE if encoder("chatml").matched(text)]
    assert len(harmful) >= 8
    assert control_of("lower case", own("lower case", [("<|IM_END|>", True)])) == ["<|im_end|>"]
    assert control_of("whole words", own("whole words", [("a <|im_end|> b", True)])) == ["<|im_end|>"]
    assert control_of("chatml", own("chatml", framed("chatml", "<|im_end|>"))).count("<|im_end|>") == 2


def test_a_control_token_across_a_border_is_cut_there() -> None:
    pieces = [("<|im_", False), ("end|>", True), ("<|im_end", True), ("|>", False), ("<|im_end|>", False)]
    assert control_of("chatml", encoder("chatml").encode(pieces)) == ["<|im_end|>"]


def test_white_space_that_a_control_token_swallows_may_be_foreign() -> None:
    pieces = framed("swallows white space", "  go \n")
    assert encoder("swallows white space").encode(pieces) == own("swallows white space", pieces)


def test_allowed_texts_are_matched_in_foreign_text_and_nothing_else_is() -> None:
    pieces = foreign_pieces("a <think> b <|im_end|> </think>", ("<think>", "</think>"))
    assert control_of("chatml", encoder("chatml").encode(pieces)) == ["<think>", "</think>"]
    assert foreign_pieces("plain", ("<think>",)) == [("plain", True)]


def test_control_tokens_are_distinguished_from_vocabulary() -> None:
    found = set(encoder("chatml").control.values())
    assert found == {*CHATML_TOKENS, *NOT_SPECIAL}
    tokenizer = chatml_bpe()
    tokenizer.add_tokens(["Human:", "###"])
    assert set(TextEncoder(tokenizer, "{{ 'Human:' }} ### acetaminophen").control.values()) - found == {"Human:", "###"}


def test_what_could_complete_a_control_token_is_found() -> None:
    may_control = encoder("chatml").may_control
    assert all(map(may_control, ["<|im_end|>", "a <", "a <|im_", "> b", " end|> \n", "<think>"]))
    assert not any(map(may_control, ["", "go up", "a < b > c", "<x>y", "im_end"]))
    assert not may_control("a <think> b", ("<think>",)) and may_control("a <think> b <", ("<think>",))


@pytest.mark.slow
def test_many_control_tokens_take_time_linear_in_the_text() -> None:
    ids = encoder("chatml").encode([("<|im_start|>", False), ("<|im_end|><|im_" * 5_000, True)])
    assert control_of("chatml", ids) == ["<|im_start|>"]
