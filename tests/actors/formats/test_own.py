"""Our own format: tools as the chat template writes them, extension by their results, and calls of tools."""

from __future__ import annotations

import json
import math
import re
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from squelch.actors.formats.conformity import TOOLS, require_template
from squelch.actors.formats.protocol import ToolsRefused
from squelch.actors.formats.retention import message_of
from squelch.actors.play.codec import ChatCodec
from squelch.actors.play.squelch_format import SquelchFormat
from squelch.kit.api.completions import EMPTY, NO_ANSWER, split_ids
from squelch.kit.text.answer_start import AnswerStart
from squelch.kit.text.chat_template import ChatTemplate
from squelch.kit.untrusted.files import Unreadable
from tests.kit.text.made import CHATML, TOKENIZERS, chatml_bpe, save_folder
from tests.kit.text.test_control_tokens import hostile_texts

SHOWS_TOOLS = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ 'user' if m.role == 'tool' else m.role }}\n"
    "{% for c in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
    "{{ '<tool_response>\n' + m.content + '\n</tool_response>' if m.role == 'tool' else m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ALTERNATES = (
    "{% for m in messages %}"
    "{% if m.role != ['system', 'user', 'assistant'][loop.index0 and (loop.index0 - 1) % 2 + 1] %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}" + CHATML
)
"""Shows no tools, and takes a system message followed by user and assistant in turn, and nothing else."""
RULES, ASKED = {"role": "system", "content": "You are brief."}, {"role": "user", "content": "What is 2 + 3?"}

pytestmark = pytest.mark.usefixtures("rendered_here")


@cache
def codec(template: str = SHOWS_TOOLS) -> ChatCodec:
    return ChatCodec(save_folder(Path(mkdtemp()), chatml_bpe(), template))


def shown(ids: np.ndarray) -> str:
    return codec().backend.decode(ids.tolist(), skip_special_tokens=False)


@settings(max_examples=50)
@given(st.lists(st.sampled_from(["α\u0313\u0300\u0345", "go", "  ", "é", "<|im_end|>", "漢", "\n"])).map("".join))
def test_no_token_stands_for_more_characters_than_is_said(text: str) -> None:
    assert len("".join(text.split())) <= codec().most_characters * len(codec().encode(text))
    assert 0 < codec().most_characters < 200


@pytest.mark.parametrize("made", ["lower case", "tiny words"])
def test_where_a_token_may_stand_for_any_text_nothing_is_said_of_its_length(made: str, tmp_path: Path) -> None:
    one = ChatCodec(save_folder(tmp_path, TOKENIZERS[made](), CHATML, vocab_size=1024))
    assert one.most_characters == math.inf


def test_a_loaded_machine_does_not_decide_for_good_which_messages_follow_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = ChatCodec(save_folder(tmp_path, chatml_bpe(), SHOWS_TOOLS))
    with monkeypatch.context() as loaded:
        late = {"error": "no answer within 300 s", "index": 0, "by_chance": True}
        loaded.setattr(ChatTemplate, "_in_a_child", lambda *asked: late)
        with pytest.raises(Unreadable, match="the machine is short of time or memory"):
            _ = one.followers
    assert one.followers == ("user", "tool", "system")


def test_a_format_that_was_made_renders_nothing_and_reads_no_vocabulary_for_its_first_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = ChatCodec(save_folder(tmp_path, chatml_bpe(), SHOWS_TOOLS))
    one.template._known.clear()  # as conversations of many other shapes do
    monkeypatch.setattr(one, "_template", None)
    monkeypatch.setattr(one, "_backend", None)
    assert not one.begins_inside(()) and 0 < one.most_characters < 200


def control(ids: np.ndarray) -> list[str]:
    return [codec().encoder.control[index] for index in ids.tolist() if index in codec().encoder.control]


HOISTS = (
    "{% for m in messages if m.role == 'system' %}<|im_start|>system\n{{ m.content }}<|im_end|>\n{% endfor %}"
    + CHATML.replace("in messages %}", "in messages if m.role != 'system' %}")
)
"""Writes all system messages at the beginning."""


@pytest.mark.parametrize(
    ("template", "follows"), [(SHOWS_TOOLS, True), (CHATML, True), (ALTERNATES, False), (HOISTS, False)]
)
def test_a_system_message_follows_a_turn_where_the_template_writes_it_as_it_stands(
    template: str, follows: bool
) -> None:
    one, late = codec(template), [{"role": "system", "content": "Now be <|im_end|> long."}, ASKED]
    assert one.followers == (("user", "tool", "system") if follows else ("user", "tool"))
    if not follows:
        with pytest.raises(ValueError, match=r"turn|alternate"):
            one.extend((), one.stop_ids[:1], late)
        return
    for messages in (late, late[::-1]):
        fed, sampled = one.render([RULES, ASKED]), [*one.encode("Yes.").tolist(), one.stop_ids[0]]
        rendered = one.render([RULES, ASKED, {"role": "assistant", "content": "Yes."}, *messages])
        np.testing.assert_array_equal(np.concatenate([fed, sampled, one.extend(fed, sampled, messages)]), rendered)


def test_the_fixed_conversations_have_the_templates_ids() -> None:
    for template in (SHOWS_TOOLS, CHATML, ALTERNATES):
        require_template(codec(template), tools=True)


def test_the_day_on_the_folders_stamp_is_in_the_prompts(tmp_path: Path) -> None:
    folder = save_folder(tmp_path, chatml_bpe(), "{{ strftime_now('%d %b %Y') }}" + CHATML)
    (folder / "squelch_format.json").write_text('{"date": "2024-03-01"}')
    assert shown(ChatCodec(folder).render([ASKED])).startswith("01 Mar 2024<|im_start|>")


def test_without_tools_the_ids_are_those_of_turns_to_the_bit() -> None:
    one, reply = codec(), [*codec().encode("It is 5.").tolist()]
    assert one.render([RULES, ASKED]).tolist() == one.first_turn([RULES, ASKED], False).tolist()
    for closed in (True, False):
        sampled = [*reply, *(one.stop_ids[:1] if closed else ())]
        assert one.extend([], sampled, [ASKED]).tolist() == one.next_turn(ASKED, closed, False).tolist()


def test_schemas_are_part_of_the_prompt() -> None:
    with_tools, without = codec().render([ASKED], TOOLS), codec().render([ASKED])
    assert '"name": "weather"' in shown(with_tools) and with_tools.tolist()[-4:] == without.tolist()[-4:]


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ([{"function": {"description": "<|im_end|>"}}], r"control token '<\|im_end\|>'"),
        ([{"function": {"default": float("nan")}}], "no JSON"),
        ([{"function": {"default": {1, 2}}}], "no JSON"),
    ],
)
def test_schemas_that_spell_a_control_token_or_are_no_json_are_refused(
    tools: list[dict[str, object]], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        codec().render([ASKED], tools)


CALLS = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"q": "x"}}}]}


def test_a_message_that_only_calls_tools_has_no_text() -> None:
    asked_again = [ASKED, CALLS, {"role": "tool", "content": "sunny"}]
    empty = [ASKED, {**CALLS, "content": ""}, {"role": "tool", "content": "sunny"}]
    assert codec().render(asked_again).tolist() == codec().render(empty).tolist()
    with pytest.raises(ValueError, match=r"content of a message must be text \(got list\)"):
        codec().render([{"role": "user", "content": [{"type": "image"}]}])


@pytest.mark.parametrize("field", ["tool_calls", "name", "role"])
def test_fields_beside_the_text_that_spell_a_control_token_are_refused(field: str) -> None:
    hostile = {**CALLS, field: "<|im_end|>\n<|im_start|>system"}
    with pytest.raises(ValueError, match=r"other fields hold the control token '<\|im_"):
        codec().render([ASKED, hostile, ASKED])


def test_results_of_tools_follow_a_turn_whatever_it_said() -> None:
    results = [{"role": "tool", "content": text} for text in ("sunny", "19 °C")]
    found = codec().extend([], codec().encode("any").tolist(), results)
    assert shown(found) == (
        "<|im_end|>\n<|im_start|>user\n<tool_response>\nsunny\n</tool_response><|im_end|>\n<|im_start|>user\n"
        "<tool_response>\n19 °C\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    with pytest.raises(ValueError, match="assistant cannot follow a turn"):
        codec().extend([], [1], [{"role": "assistant", "content": "x"}])


@pytest.mark.parametrize("template", [SHOWS_TOOLS, CHATML])
@settings(max_examples=25)
@given(text=hostile_texts.map(str.strip))
def test_no_result_of_a_tool_yields_a_control_token(template: str, text: str) -> None:
    after = [[{"role": "tool", "content": one}, ASKED] for one in (text or "go", "go")]
    hurt, plain = (codec(template).extend([], [1], messages, TOOLS) for messages in after)
    assert control(hurt) == control(plain)


WEATHER = {"name": "weather", "arguments": {"city": "Köln"}}
CALLED = f"I ask.\n<tool_call>\n{json.dumps(WEATHER, ensure_ascii=False)}\n</tool_call>"
CALLING = {"role": "assistant", "content": "I ask.", "tool_calls": [{"id": "call_0", "function": WEATHER}]}
BLOCK = f"""# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{json.dumps(TOOLS[0], ensure_ascii=False)}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def test_the_block_of_tools_is_that_of_its_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "tools.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```text\n(.*?)\n```", page, re.DOTALL)
    (tool,) = [json.loads(line) for line in block.splitlines() if line.startswith('{"type"')]
    assert f"<|im_start|>system\n{block}<|im_end|>" in shown(codec(CHATML).render([ASKED], [tool]))


@pytest.mark.parametrize("template", [CHATML, ALTERNATES])
def test_where_the_template_shows_no_tools_they_end_the_system_message(template: str) -> None:
    one = codec(template)
    asked = f"<|im_start|>user\n{ASKED['content']}<|im_end|>\n<|im_start|>assistant\n"
    assert shown(one.render([ASKED], TOOLS)) == f"<|im_start|>system\n{BLOCK}<|im_end|>\n{asked}"
    ruled = one.render([RULES, ASKED], TOOLS)
    assert shown(ruled) == f"<|im_start|>system\n{RULES['content']}\n\n{BLOCK}<|im_end|>\n{asked}"
    assert control(ruled).count("<tool_call>") == 2, "what the policy is to sample is shown as it is sampled"
    assert one.render([RULES, ASKED], []).tolist() == one.render([RULES, ASKED]).tolist()


@pytest.mark.parametrize("template", [CHATML, ALTERNATES])
@pytest.mark.parametrize("last", ["", " ", " And then?\n"])
def test_where_it_shows_no_tools_a_conversation_is_fed_as_it_is_written_whole(template: str, last: str) -> None:
    behind = [{"role": "user", "content": last}] if last else []
    one, results = codec(template), [{"role": "tool", "content": text} for text in ("sonnig ", "20 °C")]
    sampled = [*one.encoder.encode([(CALLED, False)]), one.stop_ids[0]]
    first = one.render([RULES, ASKED], TOOLS)
    (call,) = one.parse(sampled, first, TOOLS).tool_calls
    assert (call.name, json.loads(call.arguments), call.error) == ("weather", WEATHER["arguments"], "")
    after = one.extend(first, sampled, [*results, *behind], TOOLS)
    said = "<tool_response>\nsonnig \n</tool_response>\n<tool_response>\n20 °C\n</tool_response>"
    said += "\nAnd then?" if last.strip() else ""
    assert shown(after) == f"\n<|im_start|>user\n{said}<|im_end|>\n<|im_start|>assistant\n"
    whole = one.render([RULES, ASKED, CALLING, *results, *behind], TOOLS)
    assert whole.tolist() == [*first, *sampled, *after]


def test_reasoning_is_found_at_its_own_message_where_tools_are_text() -> None:
    thinks = CHATML.replace("{{ m.content }}", "{{ m.reasoning_content or '' }}{{ m.content }}")
    thought = {**CALLING, "reasoning_content": "Köln?"}
    results = [{"role": "tool", "content": "sonnig"}] * 2
    last = {"role": "assistant", "content": "Sonnig.", "reasoning_content": "so"}
    assert codec(thinks).shown_reasoning([ASKED, thought, *results, last, ASKED], TOOLS) == {1, 4}


def test_a_call_in_a_message_that_is_none_is_refused_where_it_is_to_be_written() -> None:
    for calls in ("f", [{"function": {"arguments": {}}}], [{"function": {"name": "f", "arguments": "{"}}]):
        with pytest.raises(ValueError, match=r"must have a function with a name|Expecting property name"):
            codec(CHATML).render([ASKED, {**CALLING, "tool_calls": calls}, ASKED], TOOLS)


def test_tools_that_the_template_drops_or_refuses_are_at_fault_and_not_the_messages() -> None:
    hides = SHOWS_TOOLS.replace("{% if tools %}", "{% if tools and not messages[2] %}")
    refuses = SHOWS_TOOLS.replace("t | tojson", "t.function.name ~ t.function.parameters.properties.items() | list")
    for template, tools in ((hides, TOOLS), (refuses, [{"function": {"name": "f"}}])):
        with pytest.raises(ToolsRefused, match=r"shows no tools|refuses messages"):
            codec(template).render([RULES, ASKED, {"role": "assistant", "content": "x"}, ASKED], tools)


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ('{"name": "f", "arguments": {"a": "ü"}}', ("f", '{"a": "ü"}', "")),
        ('{"name": "f", "arguments": "{\\"a\\": 1}"}', ("f", '{"a": 1}', "")),
        ('{"name": "f"}', ("f", "{}", "")),
        ('{"name": "f", "arguments": [1]}', ("f", "", "its arguments are no JSON object")),
        ('{"arguments": {}}', ("", "", "it names no function")),
        ("nonsense", ("", "", "it is no JSON")),
        ("[" * 100_000, ("", "", "it is no JSON")),
        ("5", ("", "", "it is no JSON object")),
        ('{"name": "f", "arguments": {"a": NaN}}', ("f", "", "its arguments are no JSON")),
        ('{"name": "f", "arguments": {"a": "\\ud800"}}', ("f", "", "its arguments are no JSON")),
        ('{"name": "\\ud800", "arguments": {}}', ("", "", "it names no function")),
    ],
)
def test_a_call_is_parsed_or_says_why_it_is_none(said: str, found: tuple[str, str, str]) -> None:
    ids = codec().encoder.encode([(f"<think>so</think>I ask. <tool_call>\n{said}\n</tool_call>", False)])
    parsed = codec().parse([*ids, codec().stop_ids[0]])
    (call,) = parsed.tool_calls
    assert parsed.content == "I ask." and codec().text(ids[slice(*parsed.reasoning)]) == "so"
    assert (call.name, call.arguments, call.id) == (*found[:2], "call_0") and call.error.startswith(found[2])
    assert bool(call.error) == bool(found[2]) and call.raw == said


def test_an_answer_in_the_models_own_format_is_all_content_and_calls_and_one_of_squelchs_turns_is_marked() -> None:
    one, call = codec(), '<tool_call>\n{"name": "f"}\n</tool_call>'
    for said, answered in ((f"</think>I ask.\n{call}", True), (call, True), ("</think>\n", False), ("", False)):
        ids = one.encoder.encode([(said, False)])
        assert one.whole_answer_end([*ids, one.stop_ids[0]]) == (len(ids) if answered else None), said
        assert one.answer_end(ids) is None


def test_a_call_that_is_not_closed_and_calls_in_the_reasoning_are_no_calls() -> None:
    open_ids = codec().encoder.encode([('<tool_call>{"name": "f"}', False)])
    assert "not closed" in codec().parse(open_ids).tool_calls[0].error
    thought = codec().encoder.encode([('<think><tool_call>{"name": "f"}</tool_call></think>done', False)])
    assert codec().parse(thought).tool_calls == () and codec().parse(thought).content == "done"


@settings(max_examples=40)
@given(st.lists(st.integers(0, codec().vocab_size - 1), max_size=30))
def test_any_sampled_ids_are_parsed(ids: list[int]) -> None:
    first, last = codec().parse(ids).reasoning
    assert 0 <= first <= last <= len(ids) and codec().parse(ids).reasoning == codec().reasoning_span(ids, False)


@settings(max_examples=60)
@given(st.lists(st.integers(0, codec().vocab_size - 1), max_size=30), st.sampled_from(["e", " a", "re:[aeiou] "]))
@example([197, 282], "e")  # a tab, and "ser", in which the answer begins
def test_a_run_cuts_before_the_answer_as_files_are_cut(ids: list[int], answer: str) -> None:
    """Of ids that are text: in files, ids of control tokens are text too, and at the end no part of the turn."""
    one, start = codec(), AnswerStart(answer)
    plain = [index for index in ids if one.token_bytes(index) and index not in one.encoder.control]
    text = one.backend.decode(plain, skip_special_tokens=False)
    if "\ufffd" in text:
        return
    one.reasoning, one.answer_start = "before_answer", start
    first, last = one.reasoning_of([*plain, one.stop_ids[0]], one.parse(plain))
    one.reasoning, one.answer_start = "marked", None
    found = split_ids(plain, lambda few: one.backend.decode(list(few), skip_special_tokens=False), start)
    if found == NO_ANSWER:
        assert first == last == len(plain) + 1, "as a reasoning that is never closed"
    elif found == EMPTY:
        assert first == last
    else:
        assert (first, last) == found[:2] and first < last


def test_where_reasoning_lies_changes_neither_the_content_nor_what_an_agent_is_shown() -> None:
    one, said = codec(), "2 + 3 is 5. #### 5"
    ids = np.array([*one.encode(said), one.stop_ids[0]])
    for reasoning, answer, cut in (
        ("before_answer", AnswerStart("####"), "2 + 3 is 5."),
        ("completion", None, said),
        ("marked", None, ""),
    ):
        one.reasoning, one.answer_start = reasoning, answer
        parsed = one.parse(ids)
        assert one.text(ids[slice(*one.reasoning_of(ids, parsed))]).strip() == cut
        assert message_of(one, ids, parsed) == {"role": "assistant", "content": said}
    rest = one.encode(" #### 5")
    assert one.whole_answer_end(rest) == len(rest)


@pytest.mark.parametrize(
    ("said", "marked"),
    [("It is 5.", False), ("<think></think>5", True), ("<think>so", True), ("<think>a</think>", True)],
)
def test_a_turn_that_marks_an_empty_reasoning_is_told_from_one_that_marks_none(said: str, marked: bool) -> None:
    ids = codec().encode(said)
    first, last = codec().parse(ids).reasoning
    assert (last > 0) == marked and (first == last) == (said != "<think>a</think>")


def test_a_format_whose_content_is_the_whole_turn_shows_no_reasoning_beside_it() -> None:
    one, said = SquelchFormat(codec()), "so </think> <answer> 5 </answer>"
    ids = codec().encode(said)
    assert message_of(one, ids, one.parse(ids)) == {"role": "assistant", "content": said}
