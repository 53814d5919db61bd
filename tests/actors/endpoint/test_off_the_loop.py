"""What takes long in a request holds up no other trajectory, and loses nothing of its own."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest

from squelch.actors.endpoint import server
from squelch.actors.endpoint.session import Recorded
from squelch.kit.text.chat_template import ChatTemplate
from squelch.kit.text.control_tokens import TextEncoder
from tests.actors.endpoint.support import (
    CONTEXT,
    LIMIT,
    TOOL,
    USER,
    Client,
    Policy,
    codec,
    one_is_lost,
    playing,
    run,
    seeds,
    serving,
    until,
    whole,
)

pytestmark = pytest.mark.usefixtures("rendered_here")
NUMBERS = itertools.count()


class Hanging:
    """A renderer that renders `tool`, which is new, only once it is let go."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.has_begun, self.may_end = threading.Event(), threading.Event()
        self.tool = {**TOOL, "function": {**TOOL["function"], "description": f"Hangs, number {next(NUMBERS)}."}}
        self._rendered = ChatTemplate._in_a_child
        patch.setattr(ChatTemplate, "_in_a_child", lambda *asked: self._answer(*asked))

    def _answer(self, one: ChatTemplate, request: dict[str, Any]) -> dict[str, Any]:
        if [self.tool] in request["tools"]:
            self.has_begun.set()
            assert self.may_end.wait(100), "the event loop stands still"
        return self._rendered(one, request)


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    with pytest.MonkeyPatch.context() as patch:
        found = Hanging(patch)
        yield found
        found.may_end.set()


def test_other_trajectories_are_answered_while_a_rendering_hangs(hanging: Hanging) -> None:
    async def play():
        async with serving() as endpoint:
            held, other = (endpoint.open(Policy("Yes."), seeds, LIMIT) for _ in range(2))
            async with Client(held) as first, Client(other) as second:
                waiting = asyncio.create_task(first.said(USER, tools=[hanging.tool]))
                await until(hanging.has_begun.is_set)
                said = [await second.said(USER), await second.said(USER, tools=[TOOL])]
                assert not waiting.done()
                hanging.may_end.set()
                return [*said, await waiting]

    assert [one["content"] for one in run(play())] == ["Yes."] * 3


def test_a_request_that_comes_again_while_it_is_placed_is_sampled_once(hanging: Hanging) -> None:
    async def play():
        policy = Policy("Yes.")
        async with playing(policy) as (session, client):
            gone = asyncio.create_task(client.said(USER, tools=[hanging.tool]))
            await until(hanging.has_begun.is_set)
            gone.cancel()
            await until(lambda: one_is_lost(session))
            again = asyncio.create_task(client.said(USER, tools=[hanging.tool]))
            await until(lambda: session.counts["retries"])
            hanging.may_end.set()
            return await again, policy.calls, await session.end()

    said, calls, recorded = run(play())
    assert said["content"] == "Yes." and len(calls) == 1 and recorded.calls == ((0, 0),)


def test_the_end_of_a_trajectory_waits_for_no_rendering_and_nothing_is_sampled_after_it(hanging: Hanging) -> None:
    async def play():
        policy = Policy("Yes.")
        async with playing(policy) as (session, client):
            waiting = asyncio.create_task(client.ask(USER, tools=[hanging.tool]))
            await until(hanging.has_begun.is_set)
            recorded = await session.end()
            hanging.may_end.set()
            return (await waiting).status_code, policy.calls, recorded

    status, calls, recorded = run(play())
    assert status == 410 and not calls and not recorded.segments


def test_a_turn_that_is_sampled_while_another_call_is_placed_is_recorded_behind_it(hanging: Hanging) -> None:
    """Else a call could be placed in a conversation of which it has read one half before, the other after a turn."""

    async def play():
        gate = asyncio.Event()
        policy = Policy("Yes.", wait=gate.wait)
        async with playing(policy) as (session, client):
            first = asyncio.create_task(client.said(USER))
            await until(lambda: policy.calls)
            second = asyncio.create_task(client.said(USER, tools=[hanging.tool]))
            await until(hanging.has_begun.is_set)
            gate.set()
            await until(lambda: policy.answers)
            for _ in range(20):
                await asyncio.sleep(0)
            assert not first.done() and not session._turns
            hanging.may_end.set()
            said = await first
            await second
            await client.said(USER, said, USER)
            return policy, await session.end()

    policy, recorded = run(play())
    assert recorded.causes == ("", "other tools") and recorded.calls == ((0, 0), (1, 0), (0, 1))
    joint = whole(recorded)
    order = [policy.answers[0], policy.answers[2], policy.answers[1]]
    np.testing.assert_array_equal(joint.token_ids[joint.loss_mask], np.concatenate(order))


def test_a_call_that_is_placed_before_a_turn_is_recorded_does_not_continue_its_segment(hanging: Hanging) -> None:
    async def play():
        gate = asyncio.Event()
        policy = Policy("Yes.", wait=gate.wait)
        async with playing(policy) as (session, client):
            gate.set()
            said = await client.said(USER)
            gate.clear()
            asked = [asyncio.create_task(client.said(USER, said, USER))]
            await until(lambda: len(policy.calls) == 2)
            asked.append(asyncio.create_task(client.said(USER, tools=[hanging.tool])))
            await until(hanging.has_begun.is_set)
            asked.append(asyncio.create_task(client.said(USER, said, USER)))
            await until(lambda: sum(map(len, session._answers.values())) == 4)
            gate.set()
            await until(lambda: len(policy.answers) == 2)
            hanging.may_end.set()
            await asyncio.gather(*asked)
            return policy, await session.end()

    policy, recorded = run(play())
    assert recorded.causes == ("", "other tools", "branch") and recorded.calls == ((0, 0), (0, 1), (1, 0), (2, 0))
    first, second = policy.calls[1], policy.calls[3]
    np.testing.assert_array_equal(first.prompt_ids, second.prompt_ids)
    branch = np.concatenate([second.prompt_ids, policy.answers[3]])
    np.testing.assert_array_equal(recorded.segments[2].token_ids(), branch)


def test_a_turn_that_was_sampled_before_the_end_is_recorded_while_another_call_is_placed(hanging: Hanging) -> None:
    async def play():
        gate = asyncio.Event()
        policy = Policy("Yes.", wait=gate.wait)
        async with playing(policy) as (session, client):
            asked = [asyncio.create_task(client.ask(USER))]
            await until(lambda: policy.calls)
            asked.append(asyncio.create_task(client.ask(USER, tools=[hanging.tool])))
            await until(hanging.has_begun.is_set)
            gate.set()
            await until(lambda: policy.answers)
            recorded = await session.end()
            hanging.may_end.set()
            return await asyncio.gather(*asked), policy, recorded

    answers, policy, recorded = run(play())
    assert [one.status_code for one in answers] == [410, 410]
    assert recorded.calls == ((0, 0),) and recorded.text == "Yes."
    joint = whole(recorded)
    np.testing.assert_array_equal(joint.token_ids[joint.loss_mask], policy.answers[0])


@pytest.mark.parametrize("goes_first", [True, False])
def test_a_count_that_its_client_did_not_get_is_a_fault(hanging: Hanging, goes_first: bool) -> None:
    function = hanging.tool["function"]
    tool = {"name": function["name"], "description": function["description"], "input_schema": function["parameters"]}

    async def play() -> Recorded:
        async with serving() as endpoint:
            session = endpoint.open(Policy("Yes."), seeds, LIMIT)
            async with Client(session) as client:
                body = {"messages": [USER], "tools": [tool]}
                asked = asyncio.create_task(client.post("/v1/messages/count_tokens", json=body))
                await until(hanging.has_begun.is_set)
                if goes_first:
                    asked.cancel()
                    assert endpoint._http is not None
                    await until(lambda: not endpoint._http._open)
                    hanging.may_end.set()
                    await until(lambda: not session.in_progress)
                recorded = await session.end()
                hanging.may_end.set()
                await asyncio.wait({asked})
                return recorded

    assert run(play()).fault == "the client was gone before it had the answer to a request"


def test_bodies_and_messages_that_are_long_are_read_and_encoded_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "no " * (server.LARGE_BYTES // 2)
    seen: set[str] = set()
    parsed, encoded = server.parse_object, TextEncoder.encode

    def noted(call: Any, *given: Any) -> Any:
        seen.add(f"{call.__name__} {threading.current_thread() is threading.main_thread()}")
        return call(*given)

    monkeypatch.setattr(server, "parse_object", lambda *given: noted(parsed, *given))
    monkeypatch.setattr(TextEncoder, "encode", lambda *given: noted(encoded, *given))

    async def play() -> httpx.Response:
        async with playing(Policy("Yes."), max_request_bytes=2**21) as (_, client):
            return await client.ask({"role": "user", "content": text})

    answer = run(play())
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert seen == {"parse_object False", "encode False"}


def test_messages_that_exceed_the_context_however_they_are_encoded_are_refused_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(*given: Any) -> Any:
        raise AssertionError("nothing is encoded")

    text = "x" * int(CONTEXT * codec().most_characters + 1)

    async def play() -> list[httpx.Response]:
        async with playing(Policy("Yes.")) as (session, client):
            with monkeypatch.context() as patch:
                patch.setattr(TextEncoder, "encode", never)
                refused = await client.ask({"role": "user", "content": f" {text} "})
            assert (await session.end()).truncated
        async with playing(Policy("Yes.")) as (_, client):
            return [refused, await client.ask({"role": "user", "content": " " * len(text) + "x"})]

    refused, spaces = run(play())
    assert refused.status_code == 400 and refused.json()["error"]["code"] == "context_length_exceeded"
    assert f"the messages have {len(text)} characters" in refused.json()["error"]["message"]
    assert spaces.status_code == 400, "this template shows white space"
    assert " tokens, and with " in spaces.json()["error"]["message"], "others may not, so it was encoded"


def test_a_request_that_was_refused_before_it_was_sampled_is_no_answer_to_a_retry() -> None:
    async def play():
        async with playing(Policy("Yes.")) as (session, client):
            long = {"role": "user", "content": "x " * CONTEXT}
            for number in (0, 1):
                answer = await client.ask(long, headers={"x-stainless-retry-count": str(number)})
                assert answer.status_code == 400
            return await session.end()

    counts = dict(run(play()).counts)
    assert counts == {"refused": 2}


def test_threads_that_use_one_template_at_once_get_the_same_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("squelch.kit.text.chat_template._KEPT_SHAPES", 0)
    tools = [{**TOOL, "function": {**TOOL["function"], "name": f"add_{number}"}} for number in range(40)]
    expected = [codec().render([USER], [tool]).tolist() for tool in tools]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda tool: codec().render([USER], [tool]).tolist(), tools))
    assert found == expected
