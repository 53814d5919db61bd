"""Unmodified clients of the index through the endpoint: a script samples, and no engine runs."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from squelch.actors.endpoint.session import Call
from squelch.actors.messages import Completion
from tests.clients.support import Sample, assert_decodes, codec, play

ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'
SPACED = '<tool_call>\n{ "arguments" : {"b":4,  "a":5}, "name":"add" }\n</tool_call>'
FINAL = '<tool_call>\n{"name": "final_answer", "arguments": {"answer": "9"}}\n</tool_call>'
"""The call with which an agent of smolagents ends."""

pytestmark = pytest.mark.usefixtures("rendered_here")


def scripted(*texts: str) -> Sample:
    """Samples these texts in turn; one that reaches a stop string ends with it, as the engine's do."""
    left = list(texts)

    async def sample(call: Call) -> Completion:
        text = left.pop(0)
        ends = [text.index(stop) + len(stop) for stop in call.stop if stop in text]
        ids = codec().encode(text[: min(ends)] if ends else text)
        if not ends:
            ids = np.append(ids, np.int32(codec().stop_ids[0]))
        return Completion(str(call.number), ids, np.full(len(ids), -0.5, np.float32), "stop", 0, 0)

    return sample


@pytest.mark.parametrize("program", ["openai", "responses"])
def test_openai_plays_tools_in_one_segment(program: str) -> None:
    said = (f"First 2 + 3.\n{ADD}", SPACED, "It is 9, é 漢.", f"{ADD}\n{SPACED}", "Done.")
    played = asyncio.run(play(codec(), program, len(said), scripted(*said)))
    assert_decodes(codec(), played)
    assert played.segments_of_calls == [0] * len(said), "what it sends back continues what was sampled"


def test_anthropic_plays_tools_in_one_segment_a_conversation() -> None:
    said = (f"First 2 + 3.\n{ADD}", SPACED, "It is 9, é 漢.")
    runner = (f"Its sum:\n{ADD}", ADD, "15")
    played = asyncio.run(play(codec(), "anthropic", len(said), scripted(*said, *runner)))
    assert_decodes(codec(), played)
    assert played.segments_of_calls == [0, 0, 0, 1, 1, 1]


def test_smolagents_writes_its_history_anew_so_each_step_is_a_segment() -> None:
    said = (
        f"First 2 + 3.\n{ADD}",
        "I think. Calling tools: and more that is never seen",
        f"{SPACED}\nObservation: 9",
        FINAL,
    )
    played = asyncio.run(play(codec(), "smolagents", len(said), scripted(*said)))
    assert_decodes(codec(), played)
    assert played.segments_of_calls == [0, 1, 1, 2], "a reply without a call comes back as it was"
    assert played.recorded is not None and played.recorded.causes == ("", *["history rewritten"] * 2)
