"""The packages' own clients against the endpoint, and our tables of fields and answers against the packages' types."""

from __future__ import annotations

import json

import anthropic
import openai
import pytest
from anthropic.types.beta.message_create_params import MessageCreateParamsBase as BetaMessageCreateParamsBase
from anthropic.types.message_create_params import MessageCreateParamsBase
from openai.types.chat.completion_create_params import CompletionCreateParamsBase
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from squelch.actors.endpoint.fields import CHAT, MESSAGES, RESPONSES, Fields
from squelch.actors.endpoint.server import Endpoint
from tests.actors.endpoint.support import CALLING, CONTEXT, SYSTEM, THINKING, TOOL, USER, Policy, playing, run, shown

pytestmark = pytest.mark.usefixtures("rendered_here")


def openai_of(session) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"{session.base_url}/v1", api_key=session.token, _strict_response_validation=True
    )


def anthropic_of(session) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=session.base_url, api_key=session.token, _strict_response_validation=True)


@pytest.mark.parametrize(
    ("fields", "package"),
    [
        (CHAT, CompletionCreateParamsBase),
        (MESSAGES, MessageCreateParamsBase),
        (MESSAGES, BetaMessageCreateParamsBase),
        (RESPONSES, ResponseCreateParamsBase),
    ],
)
def test_every_field_of_the_packages_requests_is_known_by_name(fields: Fields, package: type) -> None:
    groups = (fields.read, fields.ignored, fields.taken_otherwise, fields.sampling, fields.refused)
    named = [name for group in groups for name in group]
    objects = {name.partition(".")[0] for name in named}
    assert set(package.__annotations__) | {"stream"} <= {*named, *objects, "thread"} and len(named) == len(set(named))


def test_openais_client_plays_with_tools_and_streams() -> None:
    async def play():
        async with playing(Policy(CALLING, THINKING, THINKING, "Yes.")) as (session, _):
            client = openai_of(session)
            messages = [SYSTEM, USER]
            first = await client.chat.completions.create(model="m", messages=messages, tools=[TOOL])
            reply = first.choices[0].message
            result = {"role": "tool", "tool_call_id": reply.tool_calls[0].id, "content": "3"}
            messages += [reply, result]
            second = await client.chat.completions.create(model="m", messages=messages, tools=[TOOL], logprobs=True)
            said = second.choices[0]
            chunks = [
                chunk
                async for chunk in await client.chat.completions.create(
                    model="m",
                    messages=[*messages, said.message, USER],
                    tools=[TOOL],
                    stream=True,
                    stream_options={"include_usage": True},
                )
            ]
            models = await client.models.list()
            return first, second, chunks, models, await session.end()

    first, second, chunks, models, recorded = run(play())
    assert first.choices[0].finish_reason == "tool_calls" and first.choices[0].message.content == "I add."
    said = second.choices[0]
    assert said.message.content == "It is 3." and said.message.model_extra["reasoning_content"] == "one and two"
    sampled = recorded.segments[0].turns[1]
    assert len(said.logprobs.content) == sampled.sample_end - sampled.sample_start == second.usage.completion_tokens
    assert "".join(token.token for token in said.logprobs.content) == THINKING
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "It is 3."
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop" and chunks[-1].usage.total_tokens
    assert [model.id for model in models.data] == ["policy"] and len(recorded.segments) == 1


def test_openais_streaming_helper_gathers_calls() -> None:
    async def play():
        async with (
            playing(Policy(CALLING)) as (session, _),
            openai_of(session).chat.completions.stream(model="m", messages=[USER], tools=[TOOL]) as stream,
        ):
            return await stream.get_final_completion()

    final = run(play()).choices[0]
    assert final.message.tool_calls[0].function.name == "add" and final.finish_reason == "tool_calls"


def test_anthropics_client_plays_with_tools_and_streams() -> None:
    tool = {"name": "add", "description": "Adds.", "input_schema": {"type": "object", "properties": {}}}
    common = {"model": "m", "max_tokens": 160, "system": "You are brief.", "tools": [tool]}

    async def play():
        async with playing(Policy(CALLING, THINKING, CALLING, "Yes. Stop here")) as (session, _):
            client = anthropic_of(session)
            messages = [{"role": "user", "content": "What is 1 + 2?"}]
            first = await client.messages.create(messages=messages, **common)
            use = first.content[1]
            result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "3"}]}
            messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
            second = await client.messages.create(
                messages=messages, thinking={"type": "enabled", "budget_tokens": 1024}, **common
            )
            messages += [{"role": "assistant", "content": second.content}, {"role": "user", "content": "And 1 + 2?"}]
            async with client.messages.stream(messages=messages, **common) as stream:
                third = await stream.get_final_message()
            messages += [
                {"role": "assistant", "content": third.content},
                {
                    "role": "user",
                    "content": [{**result, "tool_use_id": third.content[1].id}, {"type": "text", "text": "Go."}],
                },
            ]
            last = await client.messages.create(messages=messages, stop_sequences=["Stop"], **common)
            return first, second, third, last, await session.end()

    first, second, third, last, recorded = run(play())
    assert [block.type for block in first.content] == ["text", "tool_use"] and first.stop_reason == "tool_use"
    assert first.content[1].input == {"a": 1, "b": 2} and second.content[0].thinking == "one and two"
    assert second.stop_reason == "end_turn" and third.content[1].input == {"a": 1, "b": 2}
    assert last.stop_reason == "stop_sequence" and last.stop_sequence == "Stop" and last.content[0].text == "Yes. "
    assert recorded.causes == ("",) and len(recorded.calls) == 4


def test_anthropics_tool_runner_sends_whole_conversations_because_threads_are_refused() -> None:
    @anthropic.beta_async_tool
    async def add(a: int, b: int) -> str:
        """Adds."""
        return str(a + b)

    async def play():
        async with playing(Policy(CALLING, CALLING, "Yes.")) as (session, _):
            messages = [{"role": "user", "content": "What is 1 + 2?"}]
            runner = anthropic_of(session).beta.messages.tool_runner(
                model="m", max_tokens=160, tools=[add], messages=messages
            )
            return [reply.stop_reason async for reply in runner], await session.end()

    reasons, recorded = run(play())
    assert reasons == ["tool_use", "tool_use", "end_turn"]
    assert recorded.causes == ("",) and len(recorded.calls) == 3 and dict(recorded.counts)["refused"] == 1


def test_the_same_conversation_over_every_api_is_the_same_ids() -> None:
    async def play(over):
        policy = Policy(CALLING, THINKING, "Two.")
        async with playing(policy) as (session, _):
            await over(session)
            recorded = await session.end()
            return [call.prompt_ids.tolist() for call in policy.calls], len(recorded.segments)

    async def over_chat(session):
        client, messages = openai_of(session), [SYSTEM, USER]
        for _ in range(3):
            answer = await client.chat.completions.create(model="m", messages=messages, tools=[TOOL])
            said = answer.choices[0].message
            calls = said.tool_calls or []
            results = [{"role": "tool", "tool_call_id": call.id, "content": "3"} for call in calls]
            messages += [said, *(results or [USER])]

    async def over_responses(session):
        client, items, tools = openai_of(session), [USER], [{"type": "function", **TOOL["function"]}]
        for _ in range(3):
            answer = await client.responses.create(model="m", instructions=SYSTEM["content"], input=items, tools=tools)
            calls = [item for item in answer.output if item.type == "function_call"]
            results = [{"type": "function_call_output", "call_id": call.call_id, "output": "3"} for call in calls]
            items += [*answer.output, *(results or [USER])]

    async def over_messages(session):
        client, messages = anthropic_of(session), [USER]
        function = TOOL["function"]
        tool = {**function, "input_schema": function["parameters"]}
        common = {"model": "m", "max_tokens": 160, "system": SYSTEM["content"]}
        del tool["parameters"]
        for _ in range(3):
            answer = await client.messages.create(messages=messages, tools=[tool], **common)
            calls = [block for block in answer.content if block.type == "tool_use"]
            results = [{"type": "tool_result", "tool_use_id": call.id, "content": "3"} for call in calls]
            said = {"role": "assistant", "content": answer.content}
            messages += [said, {"role": "user", "content": results} if results else USER]

    found = [run(play(over)) for over in (over_chat, over_responses, over_messages)]
    assert found[0] == found[1] == found[2] and found[0][1] == 1


def test_the_clients_raise_their_own_errors_and_repeat_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    requests, answered = [], Endpoint._answered

    async def counted(self, request):
        requests.append(request.path)
        return await answered(self, request)

    monkeypatch.setattr(Endpoint, "_answered", counted)

    async def play():
        policy = Policy("Yes.")
        async with playing(policy, most_calls=1) as (session, _):
            ours, theirs = openai_of(session), anthropic_of(session)
            found = []
            for call, error in (
                (lambda: ours.chat.completions.create(model="m", messages=[USER], n=2), openai.BadRequestError),
                (lambda: ours.with_options(api_key="no").models.list(), openai.AuthenticationError),
                (lambda: ours.chat.completions.create(model="m", messages=[SYSTEM, USER]), None),
                (lambda: ours.chat.completions.create(model="m", messages=[USER]), openai.RateLimitError),
                (lambda: theirs.messages.create(model="m", max_tokens=9, messages=[]), anthropic.BadRequestError),
                (lambda: theirs.messages.batches.list(), anthropic.NotFoundError),
            ):
                requests.clear()
                if error is None:
                    await call()
                else:
                    with pytest.raises(error) as raised:
                        await call()
                    found.append(str(raised.value))
                assert len(requests) == 1, "the client repeated its request"
            return found, len(policy.calls)

    found, calls = run(play())
    assert calls == 1
    for text, said in zip(
        found, ("n must be 1", "token of no trajectory", "its 1 calls", "at least one", "is not there"), strict=True
    ):
        assert said in text


def test_what_claude_code_sends_is_taken_and_told_where_it_changes_something() -> None:
    keep = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    clear = {"edits": [{"type": "clear_tool_uses_20250919"}]}
    common = {"model": "m", "max_tokens": 32_000, "messages": [USER], "thinking": {"type": "adaptive"}}

    async def play(sampling: str):
        async with playing(Policy("Yes."), sampling=sampling) as (_, client):
            bodies = (
                {"context_management": keep, "output_config": {"effort": "high"}, "metadata": {"user_id": "u"}},
                {"context_management": clear, "output_config": {"format": {"type": "json_schema"}}, "foo": 1},
                {"betas": ["a"], "tool_choice": {"type": "any"}, "output_config": {}},
            )
            headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219"}
            return [
                await client.post("/v1/messages?beta=true", json={**common, **body}, headers=headers) for body in bodies
            ]

    told = [answer.headers.get("x-squelch-adjusted") for answer in run(play("override"))]
    assert told == [
        "max_tokens, output_config.effort",
        "context_management, max_tokens, output_config.format",
        "max_tokens, tool_choice.type",
    ]
    found = run(play("refuse"))
    assert [answer.status_code for answer in found] == [200, 400, 200]
    assert "output_config.format=" in found[1].json()["error"]["message"]


def test_a_tool_loop_as_claude_code_sends_it_is_one_segment_and_messages_that_say_nothing_are_not_fed() -> None:
    """Requests of Claude Code's shape, written by hand: the mark of a cache moves on, and with it a message's form; a
    message of the system has no content, but the effort of the next turn."""
    cached = {"cache_control": {"type": "ephemeral"}}
    effort = {"role": "system", "content": [], "output_config": {"effort": "medium"}}
    common = {
        "model": "m",
        "system": [{"type": "text", "text": "A tag."}, {"type": "text", "text": "You work.", **cached}],
        "tools": [
            {
                "name": "add",
                "description": "Adds.",
                "input_schema": {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object"},
            }
        ],
        "metadata": {"user_id": "{}"},
        "max_tokens": 128_000,
        "thinking": {"type": "adaptive", "display": "omitted"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"},
        "stream": True,
    }
    asked = {"role": "user", "content": [{"type": "text", "text": "Add.", **cached}]}

    async def play():
        policy = Policy(f"<think>so</think>{CALLING}", "It is 3.")
        async with playing(policy) as (session, client):
            first = await client.post("/v1/messages?beta=true", json={**common, "messages": [asked, effort]})
            events = [line.removeprefix("data: ") for line in first.text.splitlines() if line.startswith("data: ")]
            begun = [json.loads(one) for one in events if "content_block_start" in one]
            use = next(one["content_block"] for one in begun if one["content_block"]["type"] == "tool_use")
            said = [
                {"type": "thinking", "thinking": "so", "signature": ""},
                {"type": "text", "text": "I add.", "citations": None},
                {**use, "input": {"b": 2, "a": 1}},
            ]
            result = {"tool_use_id": use["id"], "type": "tool_result", "content": "3", "is_error": False, **cached}
            follows = [
                {"role": "user", "content": "Add."},
                effort,
                {"role": "assistant", "content": said},
                {"role": "user", "content": [result]},
            ]
            second = await client.post("/v1/messages?beta=true", json={**common, "messages": follows})
            return first, second, policy, await session.end()

    first, second, policy, recorded = run(play())
    assert first.status_code == second.status_code == 200 and recorded.causes == ("",) and len(recorded.calls) == 2
    assert first.headers["x-squelch-adjusted"] == "max_tokens, messages.output_config, output_config.effort"
    assert "x-squelch-unknown" not in first.headers
    fed = shown(policy.calls[1].prompt_ids)
    assert [block.partition("\n")[0] for block in fed.split("<|im_start|>")[1:]] == [
        "system", "system", "user", "assistant", "user", "assistant",
    ]  # fmt: skip


def test_tokens_are_counted_as_they_are_fed_and_no_call_is_made() -> None:
    tool = {"name": "add", "description": "Adds.", "input_schema": {"type": "object", "properties": {}}}
    asked = {"model": "m", "system": "You are brief.", "tools": [tool], "thinking": {"type": "adaptive"}}

    async def play():
        async with playing(Policy(CALLING, "Yes.")) as (session, _):
            client, messages, counted, fed = anthropic_of(session), [USER], [], []
            for _ in range(2):
                counted.append((await client.messages.count_tokens(messages=messages, **asked)).input_tokens)
                answer = await client.messages.create(messages=messages, max_tokens=160, **asked)
                fed.append(answer.usage.input_tokens)
                results = [
                    {"type": "tool_result", "tool_use_id": block.id, "content": "3"}
                    for block in answer.content
                    if block.type == "tool_use"
                ]
                messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": results}]
            return counted, fed, await session.end()

    counted, fed, recorded = run(play())
    assert counted == fed and counted[0] < counted[1]
    assert recorded.causes == ("",) and len(recorded.calls) == 2 and dict(recorded.counts) == {"calls": 2}


def test_the_model_is_there_under_any_name_for_both_packages() -> None:
    async def play():
        async with playing(Policy("Yes.")) as (session, _):
            ours, theirs = openai_of(session), anthropic_of(session)
            return [
                *[(await client.models.retrieve(name)).id for client in (ours, theirs) for name in ("gpt-4o", "a/b c")],
                *[one.id for client in (ours, theirs) async for one in client.models.list()],
            ]

    assert run(play()) == ["gpt-4o", "a/b c", "gpt-4o", "a/b c", "policy", "policy"]


def test_what_is_taken_otherwise_is_told_and_counted() -> None:
    async def play(sampling: str):
        async with playing(Policy("Yes."), sampling=sampling) as (session, client):
            plain = await client.ask(USER, temperature=1.0, top_p=1, n=1, user="me", response_format={"type": "text"})
            named = {"type": "function", "function": {"name": "add"}}
            asked = {"tool_choice": named, "seed": 1, "max_tokens": CONTEXT, "foo": 1, "x y": 2}
            told = await client.ask(USER, tools=[TOOL], **asked)
            other = await client.ask(USER, temperature=0.2, top_p=0.9, logit_bias={"1": 5})
            return plain, told, other, await session.end()

    plain, told, other, recorded = run(play("override"))
    assert "x-squelch-adjusted" not in plain.headers and "x-squelch-unknown" not in plain.headers
    assert told.headers["x-squelch-adjusted"] == "max_tokens, seed, tool_choice"
    assert told.headers["x-squelch-unknown"] == "foo, other"
    assert other.headers["x-squelch-adjusted"] == "logit_bias, temperature, top_p"
    counts = dict(recorded.counts)
    assert counts["calls"] == 3 and counts["adjusted/temperature"] == counts["unknown/foo"] == 1
    plain, told, other, recorded = run(play("refuse"))
    assert (plain.status_code, told.status_code, other.status_code) == (200, 200, 400)
    assert "sampling=override" in other.json()["error"]["message"]
