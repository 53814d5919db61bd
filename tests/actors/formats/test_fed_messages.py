"""Messages are read back from fed ids exactly, in every format on offer, whatever their texts spell."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.actors.formats.conformity import TOOLS
from squelch.actors.formats.fed_messages import fed_messages
from squelch.actors.formats.tokens import ModelTokens
from tests.actors.formats.made import families, format_of, needs_package
from tests.kit.text.made import HOSTILE
from tests.kit.text.test_control_tokens import hostile_texts

pytestmark = [pytest.mark.usefixtures("rendered_here"), needs_package]
RULES, ASKED = {"role": "system", "content": "You are brief."}, {"role": "user", "content": "What is 2 + 3?"}
REPLY, AGAIN = {"role": "assistant", "content": "It is 5."}, {"role": "user", "content": "And 3 + 4?"}


def read(one: ModelTokens, ids: list[int], before: int | None = None) -> list[tuple[str, str]]:
    added = {index: token.content for index, token in one.backend.get_added_tokens_decoder().items()}

    def text(some: list[int]) -> str:
        return one.backend.decode(some, skip_special_tokens=False)

    return [(found.role, found.text) for found in fed_messages(ids, added, text, before)]


@families
def test_a_conversation_is_read_back(name: str) -> None:
    one = format_of(name)
    found = read(one, one.render([RULES, ASKED, REPLY, AGAIN]).tolist())
    assert ("user", ASKED["content"]) in found and ("user", AGAIN["content"]) in found
    assert any(role == "assistant" and REPLY["content"] in text for role, text in found)
    assert any(RULES["content"] in text for _, text in found)
    assert [text for role, text in found if role == "user"] == [ASKED["content"], AGAIN["content"]]
    assert found[-1][0] == "user", "the opening of the turn is no message"


@families
@settings(max_examples=15)
@given(content=hostile_texts.map(str.strip) | st.sampled_from([text.strip() for text in HOSTILE]))
def test_what_follows_a_turn_is_one_message_whatever_it_spells(name: str, content: str) -> None:
    one = format_of(name)
    fed = one.render([ASKED])
    for end in one.stop_ids[:1]:
        said = [*one.encode("go").tolist(), end]
        added = one.extend(fed, said, [{"role": "user", "content": content or "go"}]).tolist()
        assert [role for role, text in read(one, added, end) if role in ("user", "tool")] == ["user"]


@families
def test_results_of_tools_are_messages_of_their_own(name: str) -> None:
    if name == "deepseek-r1":
        pytest.skip("its template has no tools")
    one = format_of(name)
    fed, said = one.render([ASKED], TOOLS), [*one.encode("go").tolist(), one.stop_ids[0]]
    results = [{"role": "tool", "content": text, "tool_call_id": "call_0", "name": "weather"} for text in ("19", "20")]
    found = read(one, one.extend(fed, said, results, TOOLS).tolist(), said[-1])
    assert [text.strip('"') for role, text in found if role == "tool"] == ["19", "20"]
