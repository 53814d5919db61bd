"""Rows become the ids that the policy was fed and sampled: text as ids, turn by turn, with tools."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from squelch.actors.formats.tokens import reasoning_span
from squelch.envs.format import parse
from squelch.kit.api.completions import CALLS_ONLY, HALF_CHARACTER, NO_TOKENS, TEXT_BEFORE, UNCLOSED, UNMARKED, spans_of
from squelch.kit.api.messages import BadSample, MessageRenderer, is_messages
from squelch.kit.api.samples import Reasonings, SampleReader
from squelch.kit.api.turns import LATER
from squelch.kit.text.chat_template import ChatTemplate
from squelch.kit.text.control_tokens import TextEncoder
from squelch.kit.text.tokenizer import unknown_id
from squelch.kit.untrusted.parquet import without_nulls
from tests.kit.text.made import CHATML, chatml_bpe, metaspace, rendering_here, tiny_words

MARKERS = ("<think>", "</think>")
QWEN = """\
{% if tools %}<|im_start|>system
{% for t in tools %}{{ t | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}<|im_start|>user
<tool_response>
{{ m.content }}
</tool_response><|im_end|>
{% else %}<|im_start|>{{ m.role }}
{% if m.reasoning_content %}<think>
{{ m.reasoning_content.strip('\\n') }}
</think>

{% endif %}{{ m.content }}
{%- for c in m.tool_calls or [] %}
<tool_call>
{{ c.function | tojson }}
</tool_call>
{%- endfor %}<|im_end|>
{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""In the manner of Qwen3's template."""
OPENING = QWEN.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
TOOL = {"type": "function", "function": {"name": "go", "parameters": {}}}
CALL = {"type": "function", "function": {"name": "go", "arguments": {"to": "goal"}}}


def bare_bpe() -> Tokenizer:
    """A byte-level BPE without tokens for the markers, which merges their ends with what stands beside them."""
    merges = [
        ("Ġ", "<"),
        ("Ġ<", "/"),
        (">", "Ċ"),
        (".", "Ċ"),
        (">Ċ", "Ċ"),
        ("<", "/"),
        ("Ċ", "Ċ"),
        ("t", "h"),
        ("Ġ", "g"),
    ]
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(left + right for left, right in merges)]
    tokenizer = Tokenizer(models.BPE({piece: index for index, piece in enumerate(pieces)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = chatml_bpe().decoder
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
    return tokenizer


def reader(tokenizer: Tokenizer, template: str | None = QWEN, markers: Any = MARKERS, **options: Any) -> SampleReader:
    def renderer() -> MessageRenderer:
        if template is None:
            raise ValueError("the model has no chat template")
        return MessageRenderer(ChatTemplate(Path("model"), template, {}), tokenizer, markers or ())

    return SampleReader(tokenizer, 100_000, markers, renderer, **options)


def read(tokenizer: Tokenizer, *rows: dict[str, Any], template: str | None = QWEN, **options: Any) -> Reasonings:
    with rendering_here():
        return reader(tokenizer, template, **options).read(list(enumerate(rows, 1)))


def texts(tokenizer: Tokenizer, found: Reasonings, place: int = 0) -> tuple[str, str, str | None]:
    """X, Z and A of a sample."""
    answer = found.answers[place]
    x, z = found.prompts[found.source[place]].tolist(), found.ids[place].tolist()
    shown = [tokenizer.decode(ids, skip_special_tokens=False) for ids in (x, z)]
    return shown[0], shown[1], None if answer is None else tokenizer.decode(answer.tolist(), skip_special_tokens=False)


def same(one: Reasonings, other: Reasonings) -> bool:
    def flat(found: Reasonings) -> list[Any]:
        answers = [None if answer is None else answer.tolist() for answer in found.answers]
        return [[x.tolist() for x in found.prompts], [z.tolist() for z in found.ids], answers, found.source.tolist()]

    return flat(one) == flat(other)


# --- text and ids ---


@pytest.mark.parametrize("make", [bare_bpe, chatml_bpe, metaspace, tiny_words])
def test_text_has_the_ids_that_were_sampled_however_the_markers_are_spaced(make) -> None:
    """With the ends that trainers cut off, and the white space that policies write around the markers."""
    tokenizer = make()
    spaces = ("", " ", "\n", " \n", "\n\n")
    said = [
        f"{before}<think>{inner}go up.{last}</think>{after}goal x < y{end}"
        for before, inner, last, after, end in itertools.product(("", "\n"), spaces, spaces, spaces, ("", "\n"))
    ]
    if make is tiny_words:  # it has few words, and single spaces before them alone
        said = [text.replace("up.", "up").replace("goal x < y", " goal") for text in said]
        said = [text for text in said if unknown_id(tokenizer) not in tokenizer.encode(text).ids]
        assert len(said) > 4
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in said]
    ends = [index for index, token in tokenizer.get_added_tokens_decoder().items() if token.special][-1:]
    prompts = [f"go{' up' * (k % 5)}" for k in range(len(said))]
    text = read(tokenizer, *({"prompt": x, "completion": c} for x, c in zip(prompts, said, strict=True)), template=None)
    exact = read(
        tokenizer,
        *({"prompt": x, "completion_ids": [*c, *ends]} for x, c in zip(prompts, ids, strict=True)),
        template=None,
    )
    assert len(text.ids) == len(said) and len(text.prompts) == len(exact.prompts) == 5
    assert same(text, exact), "text is cut where ids are"
    assert all(answer is not None for answer in text.answers)


def test_a_space_before_the_closing_belongs_to_the_token_that_the_policy_wrote() -> None:
    tokenizer = bare_bpe()
    assert "Ġ</" in tokenizer.encode("go up </think>", add_special_tokens=False).tokens
    found = read(tokenizer, {"prompt": "x", "completion": "<think>\ngo up </think>\n\ngoal"}, template=None)
    assert texts(tokenizer, found) == ("x<think>\n", "go up", " </think>\n\ngoal")


def test_a_text_prompt_begins_as_the_tokenizer_begins_texts() -> None:
    """Trainers encode a prompt that is text with `<s>`; a text that has it already gets no second one."""
    tokenizer = metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    row = {"completion": "<think> go</think> up"}
    plain, started, spoken = (
        read(tokenizer, {**row, "prompt": prompt})
        for prompt in ("goal", "<s>goal", [{"role": "user", "content": "goal"}])
    )
    assert plain.prompts[0].tolist()[:1] == [1] != plain.prompts[0].tolist()[1:2]
    assert started.prompts[0].tolist()[:1] == [1] and started.prompts[0].tolist().count(1) == 1
    assert 1 not in spoken.prompts[0].tolist(), "a chat template writes its own"


@pytest.mark.parametrize("system", [False, True])
def test_control_tokens_that_a_trainer_left_out_are_put_back_where_the_template_writes_them(system) -> None:
    tokenizer = chatml_bpe()
    messages = [{"role": "system", "content": "a passage"}] * system + [{"role": "user", "content": "go <|im_end|> up"}]
    bare = "".join(f"{one['role']}\n{one['content']}\n" for one in messages).replace("<|im_end|> ", "") + "assistant\n"
    messages[-1]["content"] = "go up"
    said = {"completion": "<think>x</think> goal"}
    put_back, spoken = read(tokenizer, {**said, "prompt": bare}), read(tokenizer, {**said, "prompt": messages})
    assert same(put_back, spoken) and not put_back.control_tokens
    assert put_back.notes == ("1 prompts are text without control tokens; those of the chat template were put back",)
    (other,) = read(tokenizer, {**said, "prompt": "go up"}).notes
    assert "1 prompts are text without the control tokens that the chat template writes" in other


def test_a_prompt_stays_one_prompt_if_some_completions_begin_with_a_line_break() -> None:
    tokenizer = chatml_bpe()
    said = ["<think> go</think> up", "\n<think> up</think> go", "<think> goal</think> up"]
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in said]
    for rows in ([{"completion": text} for text in said], [{"completion_ids": each} for each in ids]):
        found = read(tokenizer, *({**row, "prompt": "go", "prompt_id": 7} for row in rows), template=None)
        assert len(found.prompts) == 1 and texts(tokenizer, found)[0].endswith("go<think>")


def test_a_completion_with_words_that_have_no_tokens_is_left_out_and_the_others_are_read() -> None:
    """Policies with word tokenizers join words that their tokenizer keeps apart, now and then."""
    rows = [{"prompt": "go", "completion": f"<think> go up{end}</think> goal"} for end in ("goal", " go", " up")]
    found = read(tiny_words(), *rows, template=None)
    assert found.excluded == {NO_TOKENS: 1} and found.rows.tolist() == [2, 3]
    with pytest.raises(BadSample, match="row 1: the tokenizer of the model cannot express"):
        read(tiny_words(), rows[1] | {"prompt": "upgoal"}, template=None)


def test_a_text_that_lost_half_a_character_is_left_out_and_its_ids_are_exact() -> None:
    """What a policy sampled of a character is U+FFFD in a trainer's text, which has other tokens."""
    tokenizer = chatml_bpe()
    half = tokenizer.encode("ж", add_special_tokens=False).ids[:1]
    asked, closing = (tokenizer.encode(text, add_special_tokens=False).ids for text in ("go<think>", "</think> goal"))
    ids = [*tokenizer.encode("up", add_special_tokens=False).ids, *half]
    said = tokenizer.decode([*ids, *closing], skip_special_tokens=False)
    assert "\ufffd" in said
    spoken = {"prompt": [{"role": "user", "content": "go"}], "completion": [{"role": "assistant", "content": said}]}
    for row in ({"prompt": "go<think>", "completion": said}, spoken, {"prompt": "go", "reasoning": said}):
        assert read(tokenizer, row, template=OPENING).excluded == {HALF_CHARACTER: 1}, row
    exact = read(tokenizer, {"prompt_ids": asked, "completion_ids": [*ids, *closing]}, template=None)
    assert exact.ids[0].tolist() == ids
    answered = read(tokenizer, {"prompt": "go<think>", "completion": "up</think> \ufffd"}, template=None)
    assert answered.texts == ["up"] and answered.answers == [None]


# --- several turns ---

FED = "user\nHow do I go up?\nassistant\n"
TWO = (
    "<think>\ngo first\n</think>\n<tool_call>\n{}\n</tool_call>\nuser\n<tool_response>\nx < y\n</tool_response>\n"
    "assistant\n<think>\nso up\n</think>\n\n<answer>up</answer>"
)


def test_a_turn_of_text_ends_where_the_environment_speaks() -> None:
    tokenizer = chatml_bpe()
    found = read(tokenizer, {"prompt": FED, "completion": TWO})
    x, z, answer = texts(tokenizer, found)
    assert (z, answer) == ("\ngo first\n", None) and x.endswith("<|im_start|>assistant\n<think>")
    assert found.turns == {"total": 2, "later": 1, "answer nothing": 1}
    every = read(tokenizer, {"prompt": FED, "completion": TWO}, turns="all")
    x, z, answer = texts(tokenizer, every, 1)
    assert (z, answer) == ("\nso up\n", "</think>\n\n<answer>up</answer>")
    assert x == (
        "<|im_start|>user\nHow do I go up?<|im_end|>\n<|im_start|>assistant\n<think>\ngo first\n</think>\n<tool_call>\n"
        "{}\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\nx < y\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<think>"
    )
    assert every.turns == {"total": 2, "answer nothing": 1}


def test_where_the_template_opens_the_reasoning_a_later_turn_is_not_read_as_the_first() -> None:
    tokenizer = chatml_bpe()
    opened = {"prompt": FED + "<think>\n", "completion": TWO.removeprefix("<think>\n").replace("<think>\n", "")}
    opened["completion"] = opened["completion"].replace("assistant\n", "assistant\n<think>\n")
    found = read(tokenizer, opened, template=OPENING, turns="all")
    assert [texts(tokenizer, found, k)[1] for k in (0, 1)] == ["go first\n", "so up\n"]
    without = read(tokenizer, opened, template=None)
    assert texts(tokenizer, without)[1] == "go first\n", "even where no template says what stands between turns"


def test_a_mention_of_the_marker_in_a_prompt_changes_nothing() -> None:
    tokenizer = chatml_bpe()
    said = {"completion": "<think>x</think> goal"}
    for prompt in ("say <think> go </think>", [{"role": "user", "content": "say </think> or <think>"}]):
        x, z, answer = texts(tokenizer, read(tokenizer, {**said, "prompt": prompt}))
        assert (z, answer) == ("x", "</think> goal") and x.count("<think>") == 2


def spoken_row(**first: Any) -> dict[str, Any]:
    return {
        "prompt": [{"role": "user", "content": "How do I go up?"}],
        "completion": [
            {"role": "assistant", "content": "", "tool_calls": [CALL], **first},
            {"role": "tool", "content": "x < y"},
            {"role": "assistant", "content": "up", "reasoning_content": "so up"},
        ],
    }


def test_messages_are_turns_and_tools_are_shown_in_x() -> None:
    tokenizer = chatml_bpe()
    row = spoken_row(reasoning_content="go first")
    found = read(tokenizer, row, turns="all", tools=[TOOL])
    (x, z, answer), (later, second, said) = (texts(tokenizer, found, k) for k in (0, 1))
    assert '{"type": "function", "function": {"name": "go"' in x and x.endswith("assistant\n<think>")
    assert (z, answer, second, said) == ("\ngo first\n", None, "\nso up\n", "</think>\n\nup")
    assert later.startswith(x.removesuffix("<think>")) and '"arguments": {"to": "goal"}' in later
    assert later.endswith("<tool_response>\nx < y\n</tool_response><|im_end|>\n<|im_start|>assistant\n<think>")
    own = read(tokenizer, {**row, "tools": [TOOL]})
    assert texts(tokenizer, own) == (x, z, answer) and own.turns["later"] == 1
    plain = read(tokenizer, row)
    assert "function" not in texts(tokenizer, plain)[0] and not found.notes and not own.notes
    assert plain.notes == (
        "1 turns call tools, and no JSON schemas are given (`tools`): the policy read another prompt",
    )
    with pytest.raises(BadSample, match="`tools` are shown by the chat template"):
        read(tokenizer, {"prompt": "go", "completion": "<think>x</think>"}, tools=[TOOL])
    with pytest.raises(BadSample, match=r"row 1: `tools` holds the control token '<\|im_end\|>'"):
        read(tokenizer, row, tools=[{"name": "<|im_end|>"}])


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking", "block", "content"])
def test_a_reasoning_is_found_wherever_a_message_keeps_it(key) -> None:
    tokenizer = chatml_bpe()
    said: dict[str, Any] = {"content": "up", key: "so up"}
    if key == "block":
        said = {"content": [{"type": "thinking", "thinking": "so up"}, {"type": "text", "text": "up"}]}
    if key == "content":
        said = {"content": "<think>\nso up\n</think>\n\nup"}
    row = {"prompt": [{"role": "user", "content": "go"}], "completion": [{"role": "assistant", **said}]}
    assert is_messages(row["completion"])
    found = read(tokenizer, row)
    assert texts(tokenizer, found)[1:] == ("\nso up\n", "</think>\n\nup") and not found.notes
    joined = read(tokenizer, row, template=CHATML)
    if key != "content":
        assert texts(tokenizer, joined)[1:] == ("so up", "</think>up")
        assert (
            "1 turns were joined from reasoning and content, because the chat template has no place" in joined.notes[0]
        )


def test_a_template_that_opens_the_reasoning_is_not_opened_twice() -> None:
    tokenizer = chatml_bpe()
    row = {"prompt": [{"role": "user", "content": "go"}]}
    row |= {"completion": [{"role": "assistant", "content": "up", "reasoning": "so up"}]}
    for template in (OPENING, CHATML.replace("assistant\n{%", "assistant\n<think>\n{%")):
        x, z, answer = texts(tokenizer, read(tokenizer, row, template=template))
        assert x.endswith("assistant\n<think>\n") and z.strip() == "so up" and str(answer).endswith("up"), template


def test_a_reasoning_that_a_parser_moved_and_nothing_follows_was_never_closed() -> None:
    """TRL's parser gives a reasoning that the token limit cut the same form as one that was closed."""
    said = {"role": "assistant", "reasoning_content": "go up", "content": ""}
    found = read(chatml_bpe(), {"prompt": [{"role": "user", "content": "go"}], "completion": [said]})
    assert found.excluded == {UNCLOSED: 1}


def test_a_turn_that_only_calls_tools_is_counted_and_no_reasoning() -> None:
    found = read(chatml_bpe(), spoken_row(), turns="all")
    assert found.excluded == {CALLS_ONLY: 1} and len(found.ids) == 1 and found.reasoned == 0.5
    text = {"prompt": "go", "completion": spoken_row()["completion"]}
    assert read(chatml_bpe(), text, turns="all").excluded == {CALLS_ONLY: 1, LATER: 1}


def test_a_mask_and_the_template_find_the_same_turns_in_ids() -> None:
    tokenizer = chatml_bpe()

    def ids(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False).ids

    turns = [
        ids("<think>\ngo first\n</think>\n<tool_call>\n{}\n</tool_call><|im_end|>"),
        ids("<think>\nso\n</think> up"),
    ]
    fed = ids("\n<|im_start|>user\nx < y<|im_end|>\n<|im_start|>assistant\n")
    row = {"prompt_ids": ids("go"), "completion_ids": [*turns[0], *fed, *turns[1]]}
    mask = [1] * len(turns[0]) + [0] * len(fed) + [1] * len(turns[1])
    found = read(tokenizer, {**row, "completion_mask": mask}, turns="all")
    assert [texts(tokenizer, found, k)[1:] for k in (0, 1)] == [("\ngo first\n", None), ("\nso\n", "</think> up")]
    assert found.prompts[1].tolist() == [*row["prompt_ids"], *turns[0], *fed, turns[1][0]]
    assert same(found, read(tokenizer, row, turns="all")) and found.turns["answer nothing"] == 1
    first = read(tokenizer, {**row, "completion_mask": mask})
    assert (len(first.ids), first.turns["later"]) == (1, 1)
    with pytest.raises(BadSample, match="row 1: the mask has 1 entries for"):
        read(tokenizer, {**row, "completion_mask": [1]})
    rows = [{"prompt_ids": [5, 6], "completion_ids": turns[1], "turn": k} for k in (0, 1)]
    assert read(tokenizer, *rows).turns == {"total": 2, "later": 1}


# --- reasonings that mention the markers ---


@pytest.mark.parametrize("mention", ["I write <think> first.", "`<think>x", "a <think> and <think> b"])
def test_where_the_prompt_opens_the_reasoning_a_mention_of_the_opening_is_text(mention) -> None:
    tokenizer = chatml_bpe()
    said = f"{mention} so up</think> goal"
    ids = tokenizer.encode(said, add_special_tokens=False).ids
    asked = tokenizer.encode("go<think>\n", add_special_tokens=False).ids
    spoken = {"prompt": [{"role": "user", "content": "go"}], "completion": [{"role": "assistant", "content": said}]}
    for row in (
        {"prompt": "go<think>\n", "completion": said},
        {"prompt_ids": asked, "completion_ids": ids},
        {"prompt": "go<think>\n", "completion_ids": ids},
        {**spoken, "completion": said},
        spoken,
    ):
        found = read(tokenizer, row, template=OPENING)
        assert not found.excluded and texts(tokenizer, found)[1:] == (f"{mention} so up", "</think> goal"), row


def test_a_later_turn_that_the_template_opens_may_mention_the_opening_too() -> None:
    tokenizer = chatml_bpe()
    turns = ["go <think> x</think> up", "so <think> y</think> goal"]
    said = f"{turns[0]}<|im_end|>\n<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n<think>\n{turns[1]}"
    spoken = [{"role": "assistant", "content": turns[0]}, {"role": "user", "content": "x"}]
    ids = tokenizer.encode(said, add_special_tokens=False).ids
    for row in (
        {"prompt": "go<think>\n", "completion": said},
        {"prompt": "go<think>\n", "completion_ids": ids},
        {
            "prompt": [{"role": "user", "content": "go"}],
            "completion": [*spoken, {"role": "assistant", "content": turns[1]}],
        },
    ):
        found = read(tokenizer, row, template=OPENING, turns="all")
        assert [texts(tokenizer, found, k)[1] for k in range(2)] == ["go <think> x", "so <think> y"], row


def test_a_mention_of_the_opening_opens_no_file_whose_completions_close_what_they_do_not_open() -> None:
    tokenizer = chatml_bpe()
    rows = [{"prompt": "go", "completion": f" {text}</think> goal"} for text in ("x", "the <think> tag", "y")]
    found = read(tokenizer, *rows, template=None)
    assert not found.excluded and texts(tokenizer, found, 1)[:2] == ("go<think>", " the <think> tag")
    before = [{"prompt": "go", "completion": f"Sure. <think>{text}</think> goal"} for text in "xy"]
    assert read(tokenizer, *before, template=None).excluded == {TEXT_BEFORE: 2}


@pytest.mark.parametrize(
    ("turn", "reasoning"),
    [
        ('say "</think>" and go</think> up', 'say "'),
        ("```\nprint('</think>')\n```\n</think> up", "```\nprint('"),
        ("the `<think>` tag, then `</think>`.</think> up", "the `<think>` tag, then `"),
    ],
)
def test_runs_files_and_the_api_end_a_reasoning_at_the_first_closing(turn, reasoning) -> None:
    tokenizer = chatml_bpe()
    for opened, text in ((True, turn), (False, f"<think>{turn}")):
        spans = spans_of(text, MARKERS, opened)
        assert not isinstance(spans, str) and text[spans.start : spans.end] == reasoning
        start, end = reasoning_span([one.encode() for one in text], opened, *MARKERS)
        assert text[start:end] == reasoning
    assert parse(turn, 1, str.strip).reasoning == reasoning.strip()
    found = read(tokenizer, {"prompt": "go<think>", "completion": turn}, template=None)
    assert texts(tokenizer, found)[1] == reasoning


# --- what is not what it seems ---


def test_where_nothing_is_marked_only_turns_that_are_scored_say_what_prompts_ask_for() -> None:
    tokenizer = chatml_bpe()
    first, later = {"prompt": "end with Answer: x", "completion": "go up", "turn": 0}, {"turn": 1, "content": None}
    found = read(tokenizer, first, later, later, template=None)
    assert found.excluded == {UNMARKED: 1} and found.asked == "Answer:" and found.turns["later"] == 2


def test_nulls_that_arrow_put_into_messages_are_dropped() -> None:
    call = {"function": {"name": "go", "arguments": {"to": "goal", "line": None}}, "id": None}
    row = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert without_nulls([row]) == [
        {"role": "assistant", "tool_calls": [{"function": {"name": "go", "arguments": {"to": "goal"}}}]}
    ]


def test_an_opening_that_no_row_shows_is_added_and_said() -> None:
    tokenizer = chatml_bpe()
    rows = [{"prompt": "go", "completion": " x</think> goal"}, {"prompt": "up", "completion": " y</think> goal"}]
    found = read(tokenizer, *rows, template=None)
    assert texts(tokenizer, found)[0] == "go<think>"
    assert found.notes == ("neither prompts nor completions open a reasoning; <think> was added to prompts",)
    some = read(tokenizer, *rows, {"prompt": "up", "completion": "<think> x</think> goal"}, template=None)
    assert texts(tokenizer, some)[0] == "go" and not some.notes, "this policy closes what it did not open"


@pytest.mark.parametrize("content", [3, [3], [{"text": "a"}], {"type": "text"}])
def test_contents_of_no_known_form_are_no_messages(content) -> None:
    assert not is_messages([{"role": "user", "content": content}])
    assert not is_messages([{"role": "user", "reasoning": content}])
    assert UNCLOSED in read(chatml_bpe(), {"prompt": "x", "completion": "<think> go"}).excluded


def test_a_message_that_shows_a_picture_is_refused_where_text_alone_is_read() -> None:
    content = [{"type": "image", "image": object()}, {"type": "text", "text": "go"}]
    row = {"prompt": [{"role": "user", "content": content}], "completion": "<think>up</think>"}
    with pytest.raises(BadSample, match="row 1: a message shows a picture; `squelch score` reads files with pictures"):
        read(chatml_bpe(), row)


def test_a_message_that_many_turns_show_is_searched_for_control_tokens_once(monkeypatch) -> None:
    searched = list[str]()

    def matched(encoder: TextEncoder, text: str) -> Any:
        searched.append(text)
        return search(encoder, text)

    search = TextEncoder.matched
    monkeypatch.setattr(TextEncoder, "matched", matched)
    messages = [{"role": ("user", "assistant")[k % 2], "content": f"<think>go {k}</think> up"} for k in range(40)]
    rows = [{"prompt": messages[:k], "completion": messages[k : k + 1]} for k in range(1, 40, 2)]
    assert len(read(chatml_bpe(), *rows, turns="all").prompts) == 20
    assert len(searched) < 3 * len(messages)
