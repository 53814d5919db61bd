"""Whatever JSON a body holds, it is a request or is refused; nothing else is raised, up to the ids of its prompt."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.actors.endpoint.canonical import Begun, Earlier, Message, Reading, Refused, Reply
from squelch.actors.endpoint.conversation import Conversation
from squelch.actors.endpoint.fields import Fields
from squelch.actors.endpoint.server import DIALECTS
from tests.actors.endpoint.support import codec

pytestmark = pytest.mark.usefixtures("rendered_here")


KINDS = (
    "text",
    "refusal",
    "input_text",
    "output_text",
    "reasoning_text",
    "namespace",
    "web_search",
    "image_url",
    "tool_use",
    "tool_result",
    "thinking",
    "function",
    "custom",
    "auto",
    "enabled",
)
KEYS = ("type", "text", "id", "name", "input", "function", "arguments", "content", "tool_use_id", "input_schema")
TEXTS = st.sampled_from([*KINDS, "", "{}", '{"a": 1}', "[" * 70 + "]" * 70, "<|im_end|>", "user", "hi"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**70) | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=8,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool"])},
        optional={
            "content": TEXTS | VALUES,
            "tool_calls": VALUES,
            "tool_call_id": TEXTS | VALUES,
            "name": TEXTS | VALUES,
            "reasoning_content": TEXTS | VALUES,
        },
    ),
    min_size=1,
    max_size=4,
)
KNOWN = f"{7:016x}"
EARLIER = {KNOWN: Earlier((Message("user", "hi"),), Message("assistant", "Hi.", (), "one"))}
IDS = st.sampled_from([f"{kind}_{number:016x}" for kind in ("resp", "rs", "msg", "fc") for number in (7, 8)])
KINDS_OF_ITEMS = (
    *("message", "reasoning", "function_call", "function_call_output", "item_reference", "custom_tool_call"),
    *("web_search_call", "compaction"),
)
ITEMS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(KINDS_OF_ITEMS) | VALUES,
            "role": st.sampled_from(["system", "developer", "user", "assistant", "tool"]),
            "id": IDS | VALUES,
            "call_id": st.sampled_from([f"call_{KNOWN}_0", f"call_{KNOWN}_1", "c"]) | VALUES,
            "encrypted_content": st.sampled_from([f"squelch.{KNOWN}", "gAAA"]) | VALUES,
            **dict.fromkeys(("content", "summary", "output", "arguments", "name", "namespace", "text"), TEXTS | VALUES),
        },
    ),
    min_size=1,
    max_size=5,
)


def names(fields: Fields) -> list[str]:
    groups = (fields.read, fields.ignored, fields.taken_otherwise, fields.sampling, fields.refused)
    named = {name.partition(".")[0] for group in groups for name in group}
    return sorted(named - {"messages", "input"})


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda one: one.path)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_body_is_a_request_or_is_refused(dialect, data: st.DataObject) -> None:
    others = data.draw(st.dictionaries(st.sampled_from([*names(dialect.fields), "foo"]), VALUES, max_size=3))
    key, given = ("input", ITEMS | TEXTS) if dialect.path == "/v1/responses" else ("messages", MESSAGES)
    body = {**others, key: data.draw(given | VALUES)}
    assert dialect.fields.key(body) == dialect.fields.key(dict(reversed(body.items())))
    with suppress(Refused):
        request, writer = dialect.read(body, Reading(100, 1000, 1.0, data.draw(st.booleans()), EARLIER.get))
        with suppress(ValueError):  # the format's, which the session answers with 400
            placed = Conversation(codec()).place(request)
            assert len(placed.prompt) and placed.path is None and not placed.cause
            begun = Begun(KNOWN, len(placed.prompt))
            reply = Reply(KNOWN, begun.num_fed, "Hi.", (), "one", "stop", "", 3, 1)
            assert writer.opening(begun) and writer.pulse() and writer.rest(reply) and writer.whole(reply)
