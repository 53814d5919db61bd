"""What must hold of the codec, on a byte-level BPE made on the spot whose pieces straddle every marker."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from squelch.actors.play.codec import ChatCodec
from squelch.kit.records.pictures import Shown
from squelch.kit.text.shipped_templates import with_template
from squelch.kit.text.tokenizer import byte_alphabet

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STRIPS_REASONING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN3 = (
    "{%- set ns = namespace(last=messages|length - 1) %}"
    "{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}"
    "{%- for m in messages %}{%- set content = m.content %}{%- set thought = '' %}"
    "{%- if m.role == 'assistant' and '</think>' in content %}"
    "{%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}"
    "{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}"
    "{{- '<|im_start|>' + m.role + '\n' }}"
    "{%- if thought and loop.index0 > ns.last %}{{- '<think>\n' + thought + '\n</think>\n\n' }}{%- endif %}"
    "{{- content + '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
"""What Qwen3's template does with reasoning: only that after the last user's message is kept."""
COUNTS_TURNS = CHATML.replace("{{ m.role }}", "{{ m.role }}{{ loop.index }}")
DROPS_ASSISTANT = CHATML.replace("{% for m in messages %}", "{% for m in messages if m.role != 'assistant' %}")
PLAIN_END = CHATML.replace("<|im_end|>", "[end]")
THINKING = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")

CORPUS = [
    " I am at 1 2 so go fast</think> <answer> Up || Left</answer>\n",
    " the goal is near</think><answer>Down</answer> ok\n",
    " fast</think> </answer>",
]
MESSAGES = [{"role": "system", "content": "Reach the goal."}, {"role": "user", "content": "P _ G"}]
NEXT = {"role": "user", "content": "_ P G"}


def byte_level_bpe() -> Tokenizer:
    """BPE over bytes whose merges cross words and markers, because the text is not split before."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, special_tokens=[], max_token_length=12)
    tokenizer.train_from_iterator([*CORPUS, "fast</th", "ink>"] * 4, trainer)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    return tokenizer


def save_model(folder: Path, tokenizer: Tokenizer, template: str | None = CHATML) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings_of_tokenizer = {"tokenizer_class": "TokenizersBackend", "eos_token": "<|endoftext|>"}
    if template is not None:
        settings_of_tokenizer["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings_of_tokenizer))
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2", "vocab_size": 384}))
    return folder


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> ChatCodec:
    return ChatCodec(save_model(tmp_path_factory.mktemp("bpe"), byte_level_bpe()))


def spell(codec: ChatCodec, ids: np.ndarray) -> str:
    """The sequence as the tokenizer writes it, control tokens included."""
    return codec._backend.decode(list(ids), skip_special_tokens=False)


def bpe(codec: ChatCodec, text: str) -> list[int]:
    return codec._backend.encode(text, add_special_tokens=False).ids


def test_pieces_of_the_second_tokenizer_do_straddle_the_markers(codec: ChatCodec) -> None:
    pieces = [codec.token_bytes(i) for i in bpe(codec, CORPUS[0])]
    assert not any(piece == b"</think>" for piece in pieces)
    joined = b"".join(pieces)
    start = joined.find(b"</think>")
    ends = np.cumsum([len(piece) for piece in pieces])
    assert start not in ends, "no piece straddles the start of the marker: the tests below would prove nothing"
    assert start + len(b"</think>") not in ends


def test_first_turn_ends_with_the_opening_of_the_reasoning(codec: ChatCodec) -> None:
    text = spell(codec, codec.first_turn(MESSAGES))
    assert text == (
        "<|im_start|>system\nReach the goal.<|im_end|>\n<|im_start|>user\nP _ G<|im_end|>\n"
        "<|im_start|>assistant\n<think>"
    )
    assert codec.first_turn(MESSAGES).dtype == np.int32


def test_next_turn_closes_the_turn_only_when_its_end_was_not_sampled(codec: ChatCodec) -> None:
    open_end, closed_end = codec.next_turn(NEXT, closed=False), codec.next_turn(NEXT, closed=True)
    rest = "\n<|im_start|>user\n_ P G<|im_end|>\n<|im_start|>assistant\n<think>"
    assert spell(codec, open_end) == "<|im_end|>" + rest
    assert spell(codec, closed_end) == rest


def test_what_is_quick_is_shown_without_the_renderer(codec: ChatCodec, monkeypatch: pytest.MonkeyPatch) -> None:
    """A codec that was just made knows the turns of a game; what is long, of another role, or not text is not quick."""
    shown = [codec.first_turn(MESSAGES), codec.next_turn(NEXT, closed=True)]
    codec._between.cache_clear()
    monkeypatch.setattr(codec._template, "render", lambda *_: pytest.fail("rendered"))
    assert codec.quick(MESSAGES, first=True) and codec.quick([NEXT], first=False) and codec.quick([], first=False)
    for ids, now in zip(shown, [codec.first_turn(MESSAGES), codec.next_turn(NEXT, closed=True)], strict=True):
        assert np.array_equal(ids, now)
    others = [{"role": "tool", "content": "x"}, {**NEXT, "content": "x" * 5000}, {**NEXT, "content": Shown(("x",))}]
    assert not any(codec.quick([one], first=False) for one in others)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_an_episode_is_the_concatenation_of_what_was_fed_and_sampled(codec: ChatCodec, data: st.DataObject) -> None:
    """Whatever ids are sampled, the text of the whole is the texts of the parts, and nothing sampled changes."""
    sampled_turns = data.draw(
        st.lists(st.lists(st.integers(0, len(codec._tokenizer) - 4), max_size=12), min_size=1, max_size=3)
    )
    parts, expected = [codec.first_turn(MESSAGES)], spell(codec, codec.first_turn(MESSAGES)).encode()
    spans = []
    for sampled in sampled_turns:
        closed = data.draw(st.booleans())
        start = sum(map(len, parts))
        spans.append((start, start + len(sampled)))
        parts += [np.array([*sampled, *([codec.stop_ids[0]] if closed else [])], dtype=np.int32)]
        parts += [codec.next_turn(NEXT, closed)]
        expected += b"".join(codec.token_bytes(i) for i in sampled)
        expected += b"<|im_end|>\n<|im_start|>user\n_ P G<|im_end|>\n<|im_start|>assistant\n<think>"
    whole = np.concatenate(parts)
    assert b"".join(codec._literal(int(i)) for i in whole) == expected
    assert [whole[start:end].tolist() for start, end in spans] == sampled_turns


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_reasoning_span_holds_exactly_the_tokens_wholly_before_the_marker(
    codec: ChatCodec, data: st.DataObject
) -> None:
    """Against a brute-force reading, byte by byte, of any tokenization of any text around the marker."""
    text = data.draw(st.sampled_from(["", " ", " a fast", " go fast", "x \n"])) + data.draw(
        st.sampled_from(["</think>", "</think", "</think> <answer> Up</answer>", "</think></think>", ""])
    )
    ids = data.draw(segmentation(codec, text.encode()))
    start, end = codec.reasoning_span(ids)
    marker = text.find("</think>")
    owner = [index for index, i in enumerate(ids) for _ in codec.token_bytes(i)]
    in_marker = {owner[marker + k] for k in range(8)} if marker >= 0 else set(range(len(ids)))
    inside = [k for k in range(len(ids)) if k not in in_marker and k < min(in_marker, default=0)]
    if not b"".join(codec.token_bytes(ids[k]) for k in inside).strip():
        inside = []
    assert list(range(start, end)) == inside
    assert inside or start == (0 if marker >= 0 else len(ids)), "an empty span says why it is empty"


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_an_answer_ends_with_the_token_that_completes_it(codec: ChatCodec, data: st.DataObject) -> None:
    close, answer = "</think>", " <answer> Up</answer>"
    text = data.draw(st.sampled_from([close + answer, f"{close}</answer>{answer} ok\n", close + answer + answer]))
    ids = data.draw(segmentation(codec, text.encode()))
    end = codec.answer_end(ids)
    done = len(text[: text.index(answer)] + answer)
    before, through = (sum(len(codec.token_bytes(i)) for i in ids[:n]) for n in (end - 1, end))
    assert before < done <= through
    for lost in (close, answer, close + " <answer> Up", close + " Up</answer>"):
        cut = codec.answer_end(bpe(codec, lost))
        assert cut is None or lost == answer, "a turn without a complete answer has none"


def segmentation(codec: ChatCodec, text: bytes) -> st.SearchStrategy[list[int]]:
    """Any way of writing the bytes with the tokenizer's pieces."""
    by_bytes = {codec.token_bytes(i): i for i in range(len(codec._tokenizer)) if codec.token_bytes(i)}

    @st.composite
    def draw_ids(draw: st.DrawFn) -> list[int]:
        ids, position = [], 0
        while position < len(text):
            choices = [p for p in by_bytes if text.startswith(p, position)]
            piece = draw(st.sampled_from(sorted(choices, key=len, reverse=True)))
            ids.append(by_bytes[piece])
            position += len(piece)
        return ids

    return draw_ids()


def test_a_token_that_straddles_the_marker_is_not_reasoning(codec: ChatCodec) -> None:
    ids = bpe(codec, CORPUS[0])
    start, end = codec.reasoning_span(ids)
    reasoning = b"".join(codec.token_bytes(i) for i in ids[start:end])
    assert b" I am at 1 2 so go fast".startswith(reasoning) and reasoning != b" I am at 1 2 so go fast"
    assert b"<" in codec.token_bytes(ids[end])


def test_reasoning_that_is_blank_or_never_closed_is_an_empty_span_that_says_which(codec: ChatCodec) -> None:
    for text in ("</think> <answer>", " \n </think>"):
        assert codec.reasoning_span(bpe(codec, text)) == (0, 0), text
    for text in (" still thinking", " ", ""):
        ids = bpe(codec, text)
        assert codec.reasoning_span(ids) == (len(ids), len(ids)), text


def test_text_leaves_out_control_tokens_and_never_raises_on_broken_bytes(codec: ChatCodec) -> None:
    ids = [*bpe(codec, " go</think>"), codec.stop_ids[0]]
    assert codec.text(ids) == " go</think>"
    half = [i for i in range(256) if codec.token_bytes(i) == b"\xc3"]
    assert codec.text(half) == "�"
    assert codec.text([383]) == "", "a row of the head that the tokenizer does not fill stands for nothing"


def test_stop_ids_hold_the_template_end_and_every_declared_end(codec: ChatCodec) -> None:
    names = {codec._added[i] for i in codec.stop_ids}
    assert names == {"<|im_end|>", "<|endoftext|>"}
    assert codec.vocab_size == 384


@pytest.mark.parametrize("template", [STRIPS_REASONING, QWEN3])
def test_a_template_that_strips_old_reasoning_is_refused_and_the_shipped_one_keeps_it(
    codec: ChatCodec, tmp_path: Path, template: str
) -> None:
    folder = save_model(tmp_path / "m", byte_level_bpe(), template)
    says = rf"{folder} removes the reasoning of earlier turns.*set model\.chat_template=chatml"
    with pytest.raises(ValueError, match=says):
        ChatCodec(folder)
    replaced = with_template(folder, "chatml", tmp_path / "cache")
    for closed in (True, False):
        assert ChatCodec(replaced).next_turn(NEXT, closed).tolist() == codec.next_turn(NEXT, closed).tolist()


def test_a_template_that_opens_the_reasoning_itself_is_not_opened_twice(tmp_path: Path) -> None:
    thinking = ChatCodec(save_model(tmp_path / "m", byte_level_bpe(), THINKING))
    assert spell(thinking, thinking.first_turn(MESSAGES)).count("<think>") == 1
    assert spell(thinking, thinking.next_turn(NEXT, True)).count("<think>") == 1


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "no chat template of its own"),
        (COUNTS_TURNS, "depending on earlier turns"),
        (DROPS_ASSISTANT, "cannot be continued turn by turn"),
        (PLAIN_END, "not an added token"),
        ("{{ raise_exception('no system role') }}", r"no system role.*system message.*set model\.chat_template"),
    ],
)
def test_an_unfit_template_is_refused_by_name(tmp_path: Path, template: str | None, message: str) -> None:
    folder = save_model(tmp_path / "model", byte_level_bpe(), template)
    with pytest.raises(ValueError, match=message) as error:
        ChatCodec(folder)
    assert str(folder) in str(error.value)


def test_a_tokenizer_that_is_not_byte_level_is_refused_by_its_kind(tmp_path: Path) -> None:
    tokenizer = byte_level_bpe()
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    with pytest.raises(ValueError, match=r"Replace \+ ByteFallback \+ Fuse"):
        ChatCodec(save_model(tmp_path / "model", tokenizer))


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        ChatCodec(tmp_path)


def test_check_names_the_words_that_the_tokenizer_lacks(tmp_path: Path) -> None:
    words = {"<unk>": 0, "Ġgo": 1, "Ġup": 2, "Ċ": 3, "user": 4, "system": 5, "assistant": 6, "<think>": 7}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    tokenizer.add_special_tokens(["<unk>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    codec = ChatCodec(save_model(tmp_path / "model", tokenizer))
    codec.check([" go up"])
    with pytest.raises(ValueError, match="'left'") as error:
        codec.check([" go up", " go left"])
    assert "'go'" not in str(error.value) and "tokenizer.json" in str(error.value)
    assert codec.unknown_words([" go up", " go left right left", "\t"]) == ["\t", "left", "right"]


def test_byte_level_bpe_knows_every_word(codec: ChatCodec) -> None:
    assert codec.unknown_words(["überall 世界 \t", "<|im_end|>", "e\u0301"]) == []


def test_the_byte_alphabet_is_the_tokenizers_own() -> None:
    alphabet = byte_alphabet()
    assert sorted(alphabet.values()) == list(range(256))
    assert set(alphabet) == set(pre_tokenizers.ByteLevel.alphabet())
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str("é <\n")[0][0]
    assert bytes(alphabet[char] for char in split) == "é <\n".encode()
