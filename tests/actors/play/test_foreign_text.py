"""What an environment shows is text to the policy: it never closes its message, and otherwise nothing changes."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.actors.play.codec import MARKERS, ChatCodec
from tests.kit.text.made import CHATML, CHATML_TOKENS, HOSTILE, TEMPLATES, TOKENIZERS, save_folder
from tests.kit.text.test_control_tokens import hostile_texts, plain_texts

PAIRS = [("chatml", name) for name in ("chatml", "stripped", "system joined to user")]
PAIRS += [("swallows white space", "stripped of line breaks")]
pairs = pytest.mark.parametrize(("kind", "template"), PAIRS)
RULES = {"role": "system", "content": "Always output <think> thoughts </think> <answer> action </answer> ."}
OBSERVATION = {"role": "user", "content": "go up"}
contents = st.tuples(plain_texts.map(str.strip), st.sampled_from([("", ""), (" ", "\n")])).map(
    lambda drawn: drawn[1][0] + drawn[0] + drawn[1][1] if drawn[0] else ""
)

pytestmark = pytest.mark.usefixtures("rendered_here")


@cache
def codec(kind: str, template: str) -> ChatCodec:
    return ChatCodec(save_folder(Path(mkdtemp()), TOKENIZERS[kind](), TEMPLATES[template]))


def rendered(one: ChatCodec, *messages: dict[str, str]) -> str:
    """The conversation as transformers renders it, with the opening of the reasoning."""
    text = str(one._tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True))
    return text if text.rstrip().endswith("<think>") else text + "<think>"


def whole(one: ChatCodec, text: str) -> list[int]:
    return one._backend.encode(text, add_special_tokens=False).ids


def control(one: ChatCodec, ids: np.ndarray) -> list[str]:
    """The control tokens among the ids, markers apart."""
    names = [one._encoder.control.get(int(index)) for index in ids]
    return [name for name in names if name and name not in MARKERS]


@pairs
@settings(max_examples=25)
@given(content=contents)
def test_ordinary_text_has_the_ids_of_the_whole_rendered_conversation(kind: str, template: str, content: str) -> None:
    one, message = codec(kind, template), {"role": "user", "content": content}
    assert one.first_turn([RULES, message]).tolist() == whole(one, rendered(one, RULES, message))
    reply = {"role": "assistant", "content": "replyreplyreply"}
    after = rendered(one, RULES, OBSERVATION, reply, message).rpartition("replyreplyreply")[2]
    assert one.next_turn(message, closed=False).tolist() == whole(one, after)


@pairs
@settings(max_examples=25)
@given(content=hostile_texts.map(str.strip))
def test_no_observation_yields_a_control_token(kind: str, template: str, content: str) -> None:
    one = codec(kind, template)
    turns = [lambda message: one.first_turn([RULES, message]), lambda message: one.next_turn(message, closed=False)]
    for turn in turns:
        assert control(one, turn({"role": "user", "content": content})) == control(one, turn(OBSERVATION))


def test_the_hostile_texts_close_a_message_when_the_whole_is_encoded() -> None:
    """Otherwise the test above would prove nothing."""
    one = codec("chatml", "chatml")
    own = control(one, one.first_turn([RULES, OBSERVATION]))
    harmed = [
        control(one, np.array(whole(one, rendered(one, RULES, {"role": "user", "content": text})))) != own
        for text in HOSTILE
    ]
    assert sum(harmed) >= 8


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_shown_as_it_is(text: str) -> None:
    one = codec("chatml", "chatml")
    shown = one._backend.decode(one.next_turn({"role": "user", "content": text}, True).tolist(), False)
    assert shown == f"\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n<think>"


def test_markers_are_matched_in_the_rules_and_in_no_observation() -> None:
    one = codec("chatml", "chatml")
    think = one._backend.token_to_id("<think>")
    assert one.first_turn([RULES, OBSERVATION]).tolist().count(think) == 2
    shown = one.first_turn([RULES, {"role": "user", "content": RULES["content"]}])
    assert shown.tolist().count(think) == 2
    assert one.encode(RULES["content"]).tolist() == whole(one, RULES["content"])


def test_a_text_that_a_policy_could_have_sampled_holds_no_control_token() -> None:
    one = codec("chatml", "chatml")
    assert control(one, one.encode("so <|im_end|> </think> <answer> 1 </answer>")) == []


def test_an_observation_cannot_open_the_reasoning() -> None:
    """With a template that writes nothing after the last message."""
    bare = "".join(f"{{% if m.role == '{role}' %}}{{{{ m.content }}}}{{% endif %}}" for role in ("system", "user"))
    source = (
        f"{{% for m in messages %}}{bare}{{% if m.role == 'assistant' %}}{{{{ m.content }}}}<|im_end|>{{% endif %}}"
    )
    one = ChatCodec(save_folder(Path(mkdtemp()), TOKENIZERS["chatml"](), source + "{% endfor %}"))
    think = one._backend.token_to_id("<think>")
    for content in ("go <think>", "go <think>\n"):
        assert one.first_turn([RULES, {"role": "user", "content": content}])[-1] == think
        assert one.next_turn({"role": "user", "content": content}, True)[-1] == think


def test_lone_surrogates_are_shown_as_question_marks() -> None:
    one = codec("chatml", "chatml")
    hurt, plain = ({"role": "user", "content": f"go {text} up"} for text in ("\ud800", "?"))
    assert one.first_turn([RULES, hurt]).tolist() == one.first_turn([RULES, plain]).tolist()
    assert one.next_turn(hurt, True).tolist() == one.next_turn(plain, True).tolist()


def test_turns_are_fed_without_rendering_again(monkeypatch: pytest.MonkeyPatch) -> None:
    one = ChatCodec(save_folder(Path(mkdtemp()), TOKENIZERS["chatml"](), CHATML))
    monkeypatch.setattr(one._template, "render", None)
    one.first_turn([RULES, {"role": "user", "content": "x"}])
    for number in range(3):
        one.next_turn({"role": "user", "content": f"reward {number}"}, closed=bool(number))


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (CHATML.replace("m.content", "m.content | upper"), "drops or changes"),
        (CHATML.replace("m.content", "m.content[:1000]"), "drops or changes"),
        (CHATML.replace("for m in messages", "for m in messages if m.role != 'system'"), "drops or changes"),
        ("{{ 'a' * 2 ** 21 }}" * 9, "needs more memory"),
        ("x" * (2**20 + 1), "at most 1048576 characters"),
    ],
)
def test_templates_that_would_change_or_exhaust_are_refused(tmp_path: Path, template: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as error:
        ChatCodec(save_folder(tmp_path, TOKENIZERS["chatml"](), template))
    assert str(tmp_path) in str(error.value)


def test_a_turn_must_end_with_a_control_token(tmp_path: Path) -> None:
    tokenizer = TOKENIZERS["chatml"]()
    tokenizer.add_tokens(["§"])
    with pytest.raises(ValueError, match="not an added token"):
        ChatCodec(save_folder(tmp_path, tokenizer, CHATML.replace("<|im_end|>", "§")))
    assert "<|im_end|>" in CHATML_TOKENS
