"""Whatever JSON a body holds, it is a request or is refused; nothing else is raised, up to the ids of its prompt."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.actors.endpoint import anthropic_api, openai_api
from squelch.actors.endpoint.canonical import Refused
from squelch.actors.endpoint.conversation import Conversation
from squelch.actors.endpoint.fields import ANTHROPIC, OPENAI, Fields
from tests.actors.endpoint.support import codec

pytestmark = pytest.mark.usefixtures("rendered_here")


KINDS = ("text", "refusal", "image_url", "tool_use", "tool_result", "thinking", "function", "custom", "auto", "enabled")
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


def names(fields: Fields) -> list[str]:
    groups = (fields.read, fields.ignored, fields.taken_otherwise, fields.sampling, fields.refused)
    return sorted(name for group in groups for name in group if name != "messages")


@pytest.mark.parametrize(
    ("api", "fields"), [(openai_api, OPENAI), (anthropic_api, ANTHROPIC)], ids=["openai", "anthropic"]
)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_body_is_a_request_or_is_refused(api, fields: Fields, data: st.DataObject) -> None:
    others = data.draw(st.dictionaries(st.sampled_from([*names(fields), "foo"]), VALUES, max_size=3))
    body = {**others, "messages": data.draw(MESSAGES | VALUES)}
    with suppress(Refused):
        request = api.request(body, 100, 1.0, data.draw(st.booleans()))
        with suppress(ValueError):  # the format's, which the session answers with 400
            placed = Conversation(codec()).place(request)
            assert len(placed.prompt) and placed.path is None and not placed.cause
