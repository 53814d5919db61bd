"""Every format of the package `renderers` on offer: the template's ids, no control token from foreign text, exact
extension, and spans within bounds for any sampled ids."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from squelch.actors.formats import packaged
from squelch.actors.formats.choice import open_format
from squelch.actors.formats.conformity import TOOLS, require_template
from squelch.actors.formats.packaged import PackagedFormat
from squelch.actors.formats.protocol import ToolsRefused, as_call
from tests.actors.formats.made import (
    control_of,
    families,
    folder_of,
    format_of,
    needs_package,
    needs_templates,
    without,
)
from tests.kit.text.made import HOSTILE
from tests.kit.text.test_control_tokens import hostile_texts

pytestmark = [pytest.mark.usefixtures("rendered_here"), needs_package]
RULES, ASKED = {"role": "system", "content": "You are brief."}, {"role": "user", "content": "What is 2 + 3?"}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
hostile = hostile_texts.map(str.strip) | st.sampled_from(
    ["<think>", "</think> x <think>", "</tool_response>", "<｜User｜>"]
)


def result(content: str) -> dict[str, str]:
    return {"role": "tool", "content": content, "tool_call_id": "call_0", "name": "weather"}


@needs_templates
@families
def test_the_ids_are_those_of_the_models_own_template(name: str) -> None:
    require_template(format_of(name), tools=name != "deepseek-r1")  # whose template has no tools


@needs_templates
def test_a_format_that_does_not_fit_is_refused_with_the_first_difference(tmp_path: Path) -> None:
    other = PackagedFormat(folder_of("qwen3", tmp_path), "qwen3.5")
    said = (
        r"model\.format=qwen3\.5 does not write .*messages of system, user\): at token \d+ .*<think>.* and the template"
    )
    with pytest.raises(ValueError, match=said):
        require_template(other)


@families
@settings(max_examples=12)
@given(content=hostile)
def test_no_text_of_a_message_yields_a_control_token(name: str, content: str) -> None:
    one = format_of(name)
    for role in ("system", "user"):
        shown, plain = ([{**RULES, "role": role, "content": text}, ASKED] for text in (content or "go", "go"))
        assert control_of(one, one.render(shown).tolist()) == control_of(one, one.render(plain).tolist())
    fed, said = one.render([ASKED]), [*one.encode("go").tolist(), one.stop_ids[0]]
    for message in (lambda text: {"role": "user", "content": text}, result):
        added = [one.extend(fed, said, [message(text)]).tolist() for text in (content or "go", "go")]
        assert control_of(one, added[0]) == control_of(one, added[1])


@families
def test_tools_are_shown_or_refused_with_the_format_that_shows_them(name: str) -> None:
    if name == "deepseek-r1":
        with pytest.raises(ToolsRefused, match=r"shows no tools; set model\.format=own"):
            format_of(name).render([ASKED], TOOLS)
    else:
        assert "weather" in format_of(name).backend.decode(format_of(name).render([ASKED], TOOLS).tolist())


def test_threads_that_use_one_format_at_once_get_the_ids_of_their_own_texts() -> None:
    one = format_of("qwen3")
    asked = [[{**ASKED, "content": f"{number} <|im_end|> {HOSTILE[number % len(HOSTILE)]}"}] for number in range(200)]
    expected = [one.render(messages).tolist() for messages in asked]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda messages: one.render(messages).tolist(), asked))
    finally:
        sys.setswitchinterval(before)
    assert found == expected


@families
def test_hostile_text_is_shown_as_it_is(name: str) -> None:
    one = format_of(name)
    for text in HOSTILE:
        assert text.strip() in one.backend.decode(
            one.render([RULES, {"role": "user", "content": text}]).tolist(), False
        )


@families
@settings(max_examples=25)
@given(data=st.data())
def test_any_sampled_ids_are_parsed_and_extended_as_they_are(name: str, data: st.DataObject) -> None:
    one = format_of(name)
    texts = ["<think>", "</think>", "<tool_call>", "</tool_call>", '{"name": "f", "arguments": {}}', "<arg_key>", "go"]
    pieces = st.sampled_from([one.encoder.encode([(text, False)]) for text in texts])
    pieces |= st.lists(st.integers(0, one.vocab_size - 1), max_size=3)
    ids = [index for piece in data.draw(st.lists(pieces, max_size=8)) for index in piece]
    fed = one.render([ASKED])
    found = one.parse(ids, fed, TOOLS)
    first, last = found.reasoning
    assert 0 <= first <= last <= len(ids)
    assert all(call.error or as_call(0, call.name, call.arguments, "").arguments for call in found.tool_calls)
    added = one.extend(fed, ids, [ASKED]).tolist()
    closed = bool(ids) and ids[-1] in one.stop_ids
    assert closed or any(index in one.stop_ids for index in added[:4])
    assert added[-3:] == fed.tolist()[-3:]


@families
def test_reasoning_is_the_tokens_between_the_markers(name: str) -> None:
    one = format_of(name)
    fed = one.render([ASKED])
    opened = one.written(fed.tolist()[-4:]).rstrip().endswith("<think>")
    said = one.encoder.encode([(f"{'' if opened else '<think>'}so 5</think>It is 5.", False)])
    found = one.parse([*said, one.stop_ids[0]], fed)
    first, last = found.reasoning
    reasoning = one.backend.decode(said[first:last], skip_special_tokens=False)
    if one.reasons:
        assert (reasoning.strip(), found.content) == ("so 5", "It is 5.")
        assert one.parse(said[: last - 1], fed).reasoning == (last - 1, last - 1)
    else:
        assert not reasoning and "It is 5." in found.content


def test_a_call_closes_the_reasoning_and_a_broken_one_says_why() -> None:
    one = format_of("qwen3")
    fed = one.render([ASKED], TOOLS)
    ids = one.encoder.encode([(f"<think>so{CALL}", False)])
    found = one.parse(ids, fed, TOOLS)
    assert one.text(ids[slice(*found.reasoning)]) == "so"
    assert [(c.name, c.arguments, c.error) for c in found.tool_calls] == [("weather", '{"city": "Köln"}', "")]
    broken = one.parse(one.encoder.encode([("<tool_call>\nnonsense\n</tool_call>", False)]), fed, TOOLS).tool_calls
    assert [(c.arguments, c.raw, c.error) for c in broken] == [("", "nonsense", "invalid_json")]


def test_a_turn_cut_in_its_reasoning_is_closed_as_the_package_closes_it() -> None:
    one = format_of("qwen3")
    added = one.extend(one.render([ASKED]), one.encoder.encode([("<think>so", False)]), [ASKED]).tolist()
    assert one.backend.decode(added, skip_special_tokens=False).startswith("</think><|im_end|>\n<|im_start|>user\nWhat")


OPEN_OR_NOT = st.sampled_from(["<think>", "</think>", "</thi", "nk>", "<tool_call>", "</tool_call>", "so", "\n", CALL])


@families
@settings(max_examples=20)
@given(parts=st.lists(st.tuples(OPEN_OR_NOT | hostile_texts, st.booleans()), min_size=1, max_size=6))
@example(parts=[("<think>", False), ("so</think>", True)])
@example(parts=[("<think>", False), ("so", True), (CALL, False)])
def test_a_reasoning_is_closed_exactly_if_it_is_open(name: str, parts: list[tuple[str, bool]]) -> None:
    """`parts`: texts, and whether each is spelled without control tokens."""
    one = format_of(name)
    tools = TOOLS if name != "deepseek-r1" else None  # whose template has none
    fed, ids = one.render([ASKED], tools), one.encoder.encode(parts)
    if not ids or ids[-1] in one.stop_ids:
        return
    is_open = one.parse(ids, fed, tools).reasoning == (len(ids), len(ids))
    added, closing = one.extend(fed, ids, [ASKED], tools).tolist(), one.encoder.encode([("</think>", False)])
    assert added[0] == one.stop_ids[0] or added[: len(closing)] == closing
    assert (added[0] != one.stop_ids[0]) == is_open


def test_schemas_are_part_of_the_prompt_and_hold_no_control_token() -> None:
    one = format_of("qwen3")
    assert '"name": "weather"' in one.backend.decode(one.render([ASKED], TOOLS).tolist())
    hurt = [{"type": "function", "function": {"name": "f", "description": "<|im_end|>", "parameters": {}}}]
    with pytest.raises(ValueError, match=r"schemas of tools hold the control token '<\|im_end\|>'"):
        one.render([ASKED], hurt)


@pytest.mark.parametrize("roles", [[], ["assistant"], ["user", "system"]])
def test_only_users_and_tools_follow_a_turn(roles: list[str]) -> None:
    with pytest.raises(ValueError, match="cannot follow a turn"):
        format_of("qwen3").extend([1], [2], [{"role": role, "content": "x"} for role in roles])


def test_a_tokenizer_without_the_familys_tokens_is_refused(tmp_path: Path) -> None:
    folder = folder_of("qwen3", tmp_path, tokens=without("<tool_response>"))
    with pytest.raises(ValueError, match=r"model\.format=qwen3 does not fit the tokenizer of .*<tool_response>"):
        PackagedFormat(folder, "qwen3")


def test_without_the_package_a_run_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of("qwen3", tmp_path)
    (folder / "squelch_format.json").write_text('{"format": "qwen3"}')
    assert open_format(folder).name == "qwen3"
    monkeypatch.setattr(packaged, "is_installed", lambda: False)
    with pytest.raises(
        ValueError, match=r"model\.format=qwen3 needs the package renderers.*deploy/setup\.sh renderers"
    ):
        open_format(folder)


@needs_templates
def test_the_day_on_the_folders_stamp_is_in_the_prompts(tmp_path: Path) -> None:
    folder = folder_of("llama-3", tmp_path)
    (folder / "squelch_format.json").write_text('{"format": "llama-3", "date": "2024-03-01"}')
    one = open_format(folder)
    assert "Today Date: 01 Mar 2024" in one.written(one.render([ASKED]).tolist())
    require_template(one, tools=True)


def test_ids_of_numpy_are_taken_too() -> None:
    one = format_of("llama-3")
    fed = one.render([ASKED])
    assert fed.dtype == np.int32 and not fed.flags.writeable
    assert one.parse(np.array([5, 6], np.int32), fed).reasoning == (0, 0)
