"""Streams whose turns take long, and requests that come again: the packages' own clients wait, and nothing is sampled
twice."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
import openai
import pytest

from squelch.actors.endpoint.server import PULSE_S
from squelch.actors.endpoint.session import Session
from squelch.actors.play.generation import GenerationFailed
from tests.actors.endpoint.support import (
    USER,
    Client,
    Policy,
    one_is_lost,
    playing,
    run,
    until,
)
from tests.moved_clock import MovedClock

pytestmark = pytest.mark.usefixtures("rendered_here")
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "m", "messages": [USER], "temperature": 1.0, "user": "a"},
    "/v1/responses": {"model": "m", "input": [USER], "temperature": 1.0, "client_metadata": {"turn": "1"}},
    "/v1/messages": {"model": "m", "max_tokens": 160, "messages": [USER], "temperature": 1.0, "metadata": {}},
}
PULSES = {
    "/v1/chat/completions": '"delta": {}, "finish_reason": null',
    "/v1/responses": "event: response.in_progress",
    "/v1/messages": "event: ping",
}


def again(body: dict[str, Any]) -> bytes:
    """The same request as another program would write it."""
    other = {**body, "temperature": 1, "client_metadata": {"turn": "2"}} if "input" in body else {**body, "user": "b"}
    if "max_tokens" in body:
        other = {**body, "metadata": {"user_id": "b"}}
    return json.dumps(dict(reversed(other.items())), indent=1).encode()


async def broken_off(session: Session, path: str, body: bytes, policy: Policy) -> None:
    """Sends a request over a connection that is closed once it is being sampled."""
    host, port = session.base_url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {session.token}\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    await until(lambda: policy.calls)
    writer.transport.abort()
    await until(lambda: one_is_lost(session))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", BODIES)
def test_a_request_that_was_broken_off_and_comes_again_in_other_words_is_sampled_once(path: str, stream: bool) -> None:
    async def play():
        gate = asyncio.Event()
        policy = Policy("One.", "Two.", wait=gate.wait)
        async with playing(policy) as (session, client):
            body = {**BODIES[path], "stream": stream}
            await broken_off(session, path, json.dumps(body).encode(), policy)
            gate.set()
            second = await client.post(path, content=again(body))
            third = await client.post(path, content=again(body))
            return second.text, third.text, await session.end()

    second, third, recorded = run(play())
    assert "One." in second and "Two." in third, "equal requests of clients that are there are calls of their own"
    assert len(recorded.calls) == 2 and dict(recorded.counts)["retries"] == 1


@pytest.mark.parametrize("path", BODIES)
def test_a_stream_that_waits_is_opened_and_says_that_it_lives(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = MovedClock(monkeypatch)

    async def play():
        gate = asyncio.Event()
        policy = Policy("It is 3.", wait=gate.wait)
        async with playing(policy) as (session, client):
            found = ""

            async def gather():
                nonlocal found
                async with client.stream("POST", path, json={**BODIES[path], "stream": True}) as response:
                    assert response.status_code == 200 and response.headers["content-type"] == "text/event-stream"
                    async for text in response.aiter_text():
                        found += text

            reading = asyncio.create_task(gather())
            await until(lambda: policy.calls)
            before = found
            for number in range(3):
                clock.move(PULSE_S)
                seen = number + (path == "/v1/responses")  # it is opened with one
                await until(lambda seen=seen: found and found.count(PULSES[path]) == seen)
            waited = found
            gate.set()
            await reading
            return before, waited, found.removeprefix(waited), await session.end()

    before, waited, rest, recorded = clock.run(asyncio.wait_for(play(), 90))
    assert not before and "It is 3." not in waited and "It is 3." in rest
    assert PULSES[path] not in rest or path == "/v1/chat/completions"
    assert len(recorded.calls) == 1


@pytest.mark.parametrize("path", BODIES)
def test_a_client_that_leaves_an_opened_stream_gets_the_answer_when_it_comes_again(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = MovedClock(monkeypatch)

    async def play():
        gate = asyncio.Event()
        policy = Policy("One.", "Two.", wait=gate.wait)
        async with playing(policy) as (session, client):
            body = {**BODIES[path], "stream": True}
            opening = asyncio.create_task(opened(clock, policy))
            async with Client(session) as leaving, leaving.stream("POST", path, json=body):
                await opening
            await until(lambda: one_is_lost(session))
            waiting = asyncio.create_task(client.post(path, content=again(body)))
            await until(lambda: session.counts["retries"])
            gate.set()
            return (await waiting).text, await session.end()

    text, recorded = clock.run(asyncio.wait_for(play(), 90))
    assert "One." in text and len(recorded.calls) == 1 and recorded.failure is None


async def opened(clock: MovedClock, policy: Policy) -> None:
    """Lets a stream be opened once its turn is being sampled."""
    await until(lambda: policy.calls)
    clock.move(PULSE_S)


class Failing(Policy):
    async def __call__(self, call):
        await super().__call__(call)
        raise GenerationFailed("rollout worker rollout-3: gone")


def test_an_error_behind_the_opening_is_what_each_client_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = MovedClock(monkeypatch)

    async def play(read):
        gate = asyncio.Event()
        policy = Failing("One.", wait=gate.wait)
        async with playing(policy) as (session, _):
            seen = asyncio.Event()
            reading = asyncio.create_task(read(session, seen))
            await opened(clock, policy)
            await seen.wait()
            gate.set()
            return await asyncio.gather(reading, return_exceptions=True), await session.end()

    async def last(events, seen):
        async for event in await events:
            seen.set()
            found = event
        return found

    def ours(session):
        return openai.AsyncOpenAI(base_url=f"{session.base_url}/v1", api_key=session.token, max_retries=0)

    def over_chat(session, seen):
        return last(ours(session).chat.completions.create(model="m", messages=[USER], stream=True), seen)

    def over_responses(session, seen):
        return last(ours(session).responses.create(model="m", input="Hi", stream=True), seen)

    def over_messages(session, seen):
        client = anthropic.AsyncAnthropic(base_url=session.base_url, api_key=session.token, max_retries=0)
        return last(client.messages.create(model="m", max_tokens=9, messages=[USER], stream=True), seen)

    for read in (over_chat, over_responses, over_messages):
        (found,), recorded = clock.run(asyncio.wait_for(play(read), 60))
        if read is over_responses:
            assert found.type == "response.failed" and found.response.error.code == "server_error"
            assert "rollout-3" in found.response.error.message
        else:
            assert isinstance(found, openai.APIError | anthropic.APIStatusError) and "rollout-3" in str(found)
        assert recorded.failure is not None and "rollout-3" in recorded.failure.detail


def test_a_responses_stream_that_ends_at_its_limit_is_the_same_when_codex_sends_it_again() -> None:
    """Codex takes `response.incomplete` for a broken stream, and sends the request again over the same connection."""

    async def play(path: str, **fields: Any):
        policy = Policy("It is quite long.", "Two.")
        async with playing(policy) as (session, client):
            found = [(await client.post(path, json={**BODIES[path], **fields})).text for _ in range(3)]
            return found, len(policy.calls), await session.end()

    found, calls, recorded = run(play("/v1/responses", stream=True, max_output_tokens=3))
    assert (
        calls == len(recorded.calls) == 1
        and len({json.loads(one.rpartition("data: ")[2])["response"]["id"] for one in found}) == 1
    )
    assert "response.incomplete" in found[0] and '"reason": "max_output_tokens"' in found[0]
    for path, fields in (("/v1/responses", {"max_output_tokens": 3}), ("/v1/chat/completions", {"max_tokens": 3})):
        _, calls, _ = run(play(path, **fields))
        assert calls == 3, "whoever takes what there is may ask for another"


def test_refusals_before_sampling_keep_their_status_in_a_stream() -> None:
    async def play():
        async with playing(Policy("Yes."), most_calls=1) as (session, client):
            body = {"model": "m", "stream": True, "tools": []}
            long = await client.post("/v1/responses", json={**body, "input": "x " * 5000})
            first = await client.post("/v1/responses", json={**body, "input": "Hi"})
            many = await client.post("/v1/responses", json={**body, "input": "Ho"})
            return long, first, many, await session.end()

    long, first, many, recorded = run(play())
    assert (long.status_code, first.status_code, many.status_code) == (400, 200, 429)
    assert long.json()["error"]["code"] == "context_length_exceeded"
    assert many.headers["x-should-retry"] == "false" and recorded.truncated
