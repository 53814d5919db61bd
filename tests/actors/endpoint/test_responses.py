"""OpenAI's responses: the package's own types parse all that is sent, and whatever comes back is spliced."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.actors.endpoint.support import CALLING, THINKING, USER, Policy, playing, run, shown, whole

pytestmark = pytest.mark.usefixtures("rendered_here")
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
ADD = {"type": "function", "name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}
BOTH = f"<think>one and two</think>{CALLING}{CALLING}"
OTHER = {"role": "user", "content": "And 2 + 2?"}
INCLUDE = ["reasoning.encrypted_content", "message.output_text.logprobs", "web_search_call.action.sources"]


async def answered(client, items: Any, **fields: Any) -> dict[str, Any]:
    response = await client.post("/v1/responses", json={"model": "m", "input": items, **fields})
    assert response.status_code == 200, response.text
    Response.model_validate(response.json(), strict=True)
    return response.json()


async def streamed(client, items: Any, **fields: Any) -> list[Any]:
    """The events, each parsed by the package's types."""
    response = await client.post("/v1/responses", json={"model": "m", "input": items, "stream": True, **fields})
    assert response.status_code == 200, response.text
    found = []
    for block in response.text.strip().split("\n\n"):
        kind, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert kind == f"event: {event['type']}" and event["sequence_number"] == len(found)
        found.append(EVENTS.validate_python(event, strict=True))
    return found


def output(call: dict[str, Any], text: str = "3") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call["call_id"], "output": text}


def test_an_answer_and_its_events_parse_as_the_packages_types_and_say_the_same() -> None:
    async def play():
        async with playing(Policy(BOTH)) as (session, client):
            body = {"tools": [ADD], "include": INCLUDE, "metadata": {"a": "b"}, "instructions": "Be brief."}
            one = await answered(client, [USER], **body)
            events = await streamed(client, [OTHER], **body)
            cut = await streamed(client, [OTHER, OTHER], max_output_tokens=3)
            return one, events, cut, await session.end()

    one, events, cut, recorded = run(play())
    reasoning, message, *calls = one["output"]
    assert reasoning["content"][0]["text"] == "one and two" and reasoning["encrypted_content"]
    assert message["content"][0]["text"] == "I add." and [call["name"] for call in calls] == ["add", "add"]
    assert one["metadata"] == {"a": "b"} and one["instructions"] == "Be brief." and one["status"] == "completed"
    turn = recorded.segments[0].turns[0]
    usage = one["usage"]
    assert usage["output_tokens"] == turn.sample_end - turn.sample_start == len(message["content"][0]["logprobs"])
    assert usage["output_tokens_details"]["reasoning_tokens"] == turn.reasoning_end - turn.reasoning_start > 0
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed"
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert done == events[-1].response.output and [item.type for item in done] == [
        item["type"] for item in one["output"]
    ]
    assert cut[-1].type == "response.incomplete" and cut[-1].response.incomplete_details.reason == "max_output_tokens"
    assert cut[-1].response.output[0].status == "incomplete"


def test_the_packages_streaming_helper_gathers_an_answer() -> None:
    async def play():
        async with playing(Policy(BOTH)) as (session, _):
            client = openai.AsyncOpenAI(base_url=f"{session.base_url}/v1", api_key=session.token)
            async with client.responses.stream(model="m", input="What is 1 + 2?", tools=[ADD]) as stream:
                return await stream.get_final_response()

    final = run(play())
    assert final.output_text == "I add." and [item.type for item in final.output][-2:] == ["function_call"] * 2


def as_codex(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Items without ids and status, and reasoning without its text."""
    dropped = {"id", "status"}
    return [
        {
            key: value
            for key, value in item.items()
            if key not in dropped and not (item["type"] == "reasoning" and key == "content")
        }
        for item in items
    ]


def without_token(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in item.items() if key != "encrypted_content"} for item in items]


WAYS = {
    "as it was answered": lambda items: items,
    "content alone": without_token,
    "encrypted content alone": as_codex,
    "neither": lambda items: without_token(as_codex(items)),
    "no reasoning at all": lambda items: [item for item in items if item["type"] != "reasoning"],
    "references": lambda items: [{"type": "item_reference", "id": item["id"]} for item in items],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("interleaved", [False, True], ids=["outputs behind the calls", "each behind its call"])
def test_whatever_of_a_turn_comes_back_continues_it_with_the_ids_that_were_sampled(way: str, interleaved: bool) -> None:
    policy = Policy(BOTH, THINKING, "Four.")

    async def play():
        async with playing(policy) as (session, client):
            items = [{"role": "developer", "content": [{"type": "input_text", "text": "You add."}]}, USER]
            for follows in ([], [OTHER]):
                answer = await answered(client, items, tools=[ADD], include=INCLUDE, store=False, instructions="Go.")
                for item in WAYS[way](answer["output"]):
                    items.append(item)
                calls = [item for item in answer["output"] if item["type"] == "function_call"]
                for number, call in enumerate(calls):
                    place = len(items) - len(calls) + number + 1 if interleaved else len(items)
                    items.insert(place, output(call, str(number)))
                items += follows
            await answered(client, items, tools=[ADD], instructions="Go.")
            return await session.end()

    recorded = run(play())
    assert recorded.causes == ("",) and recorded.calls == ((0, 0), (0, 1), (0, 2))
    joint = whole(recorded)
    np.testing.assert_array_equal(joint.token_ids[joint.loss_mask], np.concatenate(policy.answers))
    assert shown(joint.token_ids).count("<|im_start|>system") == 3, "the tools', and two"


@pytest.mark.parametrize(("way", "segment"), [("encrypted content alone", 0), ("content alone", 0), ("neither", 1)])
def test_reasoning_that_comes_back_says_which_of_two_equal_answers_is_meant(way: str, segment: int) -> None:
    async def play():
        async with playing(Policy("<think>a</think>Yes.", "<think>b</think>Yes.")) as (session, client):
            first, _ = [await answered(client, [USER], include=INCLUDE) for _ in range(2)]
            await answered(client, [USER, *WAYS[way](first["output"]), OTHER])
            return await session.end()

    assert run(play()).calls == ((0, 0), (1, 0), (segment, 1))


def test_a_turn_that_is_reasoning_alone_comes_back_whatever_is_left_of_it() -> None:
    async def play(way: str):
        async with playing(Policy("<think>one and two", "Yes.")) as (session, client):
            answer = await answered(client, [USER], include=INCLUDE)
            await answered(client, [USER, *WAYS[way](answer["output"]), OTHER])
            return answer, await session.end()

    for way in WAYS:
        answer, recorded = run(play(way))
        assert [item["type"] for item in answer["output"]] == ["reasoning", "message"]
        assert recorded.causes == ("",) and len(recorded.calls) == 2, way


def test_a_previous_response_stands_for_its_messages_without_its_instructions() -> None:
    policy = Policy(BOTH, THINKING, "Yes.")

    async def play():
        async with playing(policy) as (session, client):
            first = await answered(client, [USER], tools=[ADD], instructions="Be brief.")
            calls = [item for item in first["output"] if item["type"] == "function_call"]
            common = {"tools": [ADD], "instructions": "Be brief."}
            second = await answered(client, [output(one) for one in calls], previous_response_id=first["id"], **common)
            await answered(client, "And?", previous_response_id=second["id"], **common)
            await answered(client, "And?", previous_response_id=first["id"], tools=[ADD], instructions="Be long.")
            await answered(client, "And?", previous_response_id=second["id"], tools=[ADD])
            return await session.end()

    recorded = run(play())
    assert recorded.calls == ((0, 0), (0, 1), (0, 2), (1, 0), (2, 0))
    assert recorded.causes == ("", "other system message", "other system message")
    others = [shown(segment.token_ids()) for segment in recorded.segments[1:]]
    assert "Be long." in others[0] and "Be brief." not in "".join(others)
    assert others[1].count("one and two") == 2 and others[1].count("It is 3.") == 1


def test_functions_of_a_namespace_are_flattened_for_the_policy_and_named_back() -> None:
    tools = [
        {"type": "namespace", "name": "mcp__sums__", "description": "Sums.", "tools": [ADD]},
        {**ADD, "description": "Plain."},
    ]
    calling = CALLING.replace('"add"', '"mcp__sums__add"') + CALLING

    async def play():
        async with playing(Policy(calling, "Yes.")) as (session, client):
            first = await answered(client, [USER], tools=tools)
            calls = first["output"][-2:]
            await answered(client, [USER, *as_codex(first["output"]), *map(output, calls)], tools=tools)
            return calls, await session.end()

    calls, recorded = run(play())
    assert [(call.get("namespace"), call["name"]) for call in calls] == [("mcp__sums__", "add"), (None, "add")]
    assert recorded.causes == ("",) and len(recorded.calls) == 2
    fed = shown(recorded.segments[0].token_ids())
    assert '"mcp__sums__add"' in fed and "Sums.\\nAdds." in fed and '"Plain."' in fed


def test_what_codex_sends_by_default_is_taken_and_what_changes_nothing_is_not_told() -> None:
    """A request of Codex's shape, written by hand."""
    body = {
        "instructions": "You are an agent.",
        "tools": [
            ADD,
            {"type": "web_search", "external_web_access": False},
            {"type": "web_search_preview_2025_03_11"},
            {"type": "image_generation"},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0199",
        "client_metadata": {"x-codex-installation-id": "1"},
        "text": {"verbosity": "medium"},
        "truncation": "disabled",
        "background": False,
        "stream": True,
    }
    items = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions>"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<environment_context>"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Add."}]},
    ]

    async def play():
        async with playing(Policy("Yes.")) as (_, client):
            told = await client.post("/v1/responses", json={"model": "m", "input": items, **body})
            other = await client.post(
                "/v1/responses",
                json={"input": "Hi", "text": {"format": {"type": "json_schema"}}, "truncation": "auto", "foo": 1},
            )
            return told, other

    told, other = run(play())
    adjusted = "reasoning.effort, reasoning.summary, text.verbosity, tools.image_generation, tools.web_search"
    assert told.headers["x-squelch-adjusted"] == adjusted and "x-squelch-unknown" not in told.headers
    assert other.headers["x-squelch-adjusted"] == "text.format, truncation"
    assert other.headers["x-squelch-unknown"] == "foo"


def test_a_tool_loop_as_codex_sends_it_is_one_segment() -> None:
    """Requests of Codex's shape, written by hand: its own items have ids of its own, ours come back as it got them."""
    body = {
        "tools": [
            {**ADD, "strict": False},
            {"type": "namespace", "name": "others", "description": "Others.", "tools": [{**ADD, "name": "ask"}]},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "01a2",
        "stream": True,
    }

    def says(role: str, *texts: str) -> dict[str, Any]:
        content = [{"type": "input_text", "text": text} for text in texts]
        return {"type": "message", "id": f"msg_01a2-{role}", "role": role, "content": content}

    async def play():
        async with playing(Policy(f"<think>so</think>{CALLING}", "It is 3.")) as (session, client):
            items = [says("developer", "Be brief."), says("developer", "<a>", "<b>"), says("user", "Add.")]
            told = []
            for number in range(2):
                more = {"client_metadata": {"turn": str(number)}}
                response = await client.post("/v1/responses", json={"model": "policy", "input": items, **body, **more})
                told.append(response.headers.get("x-squelch-adjusted"))
                last = json.loads(response.text.strip().rpartition("data: ")[2])
                items += last["response"]["output"]
                calls = [item for item in items if item["type"] == "function_call"]
                items += [{**output(call, "3\n"), "id": "fco_01a2"} for call in calls] if not number else []
            return told, last, await session.end()

    told, last, recorded = run(play())
    assert last["type"] == "response.completed" and told == ["reasoning.summary"] * 2
    assert recorded.causes == ("",) and len(recorded.calls) == 2
    fed = shown(recorded.segments[0].token_ids())
    assert '"others__ask"' in fed and "<a>\n<b>" in fed and "<tool_response>\n3\n" in fed


def test_system_items_anywhere_are_shown_where_they_stand_and_continue_the_segment() -> None:
    policy = Policy("One.", "Two.", "Three.")

    async def play():
        async with playing(policy) as (session, client):
            late, items = {"role": "developer", "content": "Now be long."}, [USER]
            for follows in ([late, OTHER], [OTHER, {**late, "role": "system"}], []):
                answer = await answered(client, items)
                items += [*answer["output"], *follows]
            return await session.end()

    recorded = run(play())
    assert recorded.causes == ("",) and len(recorded.calls) == 3
    joint = whole(recorded)
    np.testing.assert_array_equal(joint.token_ids[joint.loss_mask], np.concatenate(policy.answers))
    said = re.findall(r"<\|im_start\|>\w+\n(.*?)<\|im_end\|>", shown(joint.token_ids))
    assert said[1:] == ["One.", "Now be long.", "And 2 + 2?", "Two.", "And 2 + 2?", "Now be long.", "Three."]
