"""Conversations in a model's own format on the page: messages, calls with results, segments and why they begin."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from squelch.cluster.inspector.conversations import Conversations, OwnFormat
from squelch.cluster.inspector.texts import Pieces
from squelch.cluster.runs.folder import RunFolder
from tests.cluster.inspector.agent_run import agent_run
from tests.cluster.inspector.small_run import small_run
from tests.kit.text.made import rendering_here

Opener = Callable[[Path], TestClient]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with rendering_here():
        yield agent_run(tmp_path_factory.mktemp("agent") / "run", tmp_path_factory.mktemp("model") / "tools")


def conversations(folder: Path) -> Conversations:
    run = RunFolder(folder)
    found = OwnFormat(run).conversations(Pieces(run.tokenizer(), "here"))
    assert found is not None
    return found


def test_a_turn_has_its_messages_its_calls_and_the_results_of_those_before(folder: Path) -> None:
    from squelch.kit.archive.rows import from_table

    turns = conversations(folder).turns(from_table(RunFolder(folder).group(1, "000001-000"))[0])
    assert [one.role for one in turns[0].messages] == ["system", "system", "user"]
    assert turns[0].messages[-1].text == "How warm is Köln?"
    assert [(call.name, str(call.arguments), bool(call.error)) for call in turns[0].calls] == [
        ("weather", "{&#34;city&#34;: &#34;Köln&#34;}", False),
        ("", "nonsense &lt;script&gt;window.hacked=1&lt;/script&gt;", True),
    ]
    assert [(one.role, one.of, str(one.text)) for one in turns[1].messages] == [
        ("tool", "weather", "sunny"),
        ("tool", "", "19 °C"),
    ]
    assert [one.departure is None for one in turns] == [True, True, False, False, False]


def test_a_segment_says_up_to_which_message_it_is_an_earlier_one(folder: Path) -> None:
    from squelch.kit.archive.rows import from_table

    turns = conversations(folder).turns(from_table(RunFolder(folder).group(1, "000001-000"))[0])
    found = [one.departure for one in turns if one.departure is not None]
    assert [(one.segment, one.messages) for one in found] == [(1, 2), (2, 2), (1, 3)]
    assert all(one.tokens > 10 for one in found)
    rewritten = turns[-1].messages
    assert [(one.role, one.again) for one in rewritten] == [
        *[("system", True)] * 2,
        ("user", True),
        ("assistant", False),
        ("user", False),
    ]


def test_the_page_shows_them_escaped(folder: Path, open_run: Opener) -> None:
    text = open_run(folder).get("/group?step=1&group=000001-000").text
    plain = re.sub(r"\s+", " ", text)
    assert plain.count('<span class="role">result of weather</span>') == 3
    assert plain.count("<b>weather</b> <code>{&#34;city&#34;: &#34;Köln&#34;}</code>") == 3
    assert plain.count("history rewritten <span") == 3 and "3 messages as in segment 1" in plain
    assert plain.count("3 messages as before") == 3 and "prompt from there on" in plain
    assert "<script>window" not in text and "<img" not in text and "it is no JSON" in text
    for character in "\x1b\x00\u202e\u2066":
        assert character not in text


def test_a_run_of_squelchs_turns_is_shown_without_a_format(tmp_path: Path) -> None:
    run = RunFolder(small_run(tmp_path / "plain", 1))
    assert run.format_files() == {} and OwnFormat(run).conversations(Pieces(run.tokenizer(), "here")) is None


def test_a_format_that_cannot_be_opened_leaves_the_plain_view_and_says_why(folder: Path, open_run: Opener) -> None:
    path = folder / "format.json"
    whole = path.read_text()
    path.write_text(whole.replace("<|im_end|>", "}}{%"))
    try:
        answer = open_run(folder).get("/group?step=1&group=000001-000")
    finally:
        path.write_text(whole)
    assert answer.status_code == 200 and "messages and calls are not shown apart" in answer.text
    assert 'class="sampled"' in answer.text and 'class="call' not in answer.text
