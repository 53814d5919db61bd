"""Calls that are answered and not trained on: they are archived, and no trained segment depends on them."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from squelch.actors.endpoint.session import Recorded
from squelch.envs.contract import AgentCall
from tests.actors.endpoint.support import (
    SYSTEM,
    THINKING,
    TOOL,
    USER,
    Policy,
    codec,
    playing,
    run,
    shown,
    whole,
)

pytestmark = pytest.mark.usefixtures("rendered_here")
TITLE = {"role": "user", "content": "Give this conversation a title."}


def titles(call: AgentCall) -> str:
    return "model title" if call.model == "title" else ""


def same(one: Recorded, other: Recorded) -> None:
    """Both are trained on alike, to the bit."""
    assert (one.causes, one.calls, one.text, one.truncated) == (other.causes, other.calls, other.text, other.truncated)
    mine, theirs = whole(one), whole(other)
    for name in ("token_ids", "loss_mask", "log_probs"):
        np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))
    assert (mine.turns, mine.segments, mine.version_spans) == (theirs.turns, theirs.segments, theirs.version_spans)


class ByPrompt(Policy):
    """Says what the prompt's ids and the seed decide, whatever else was asked before."""

    async def __call__(self, call):
        self.calls.append(call)
        text = f"{int(call.prompt_ids.sum()) % 97} {call.seed % 97}"
        return self.complete(call, [*codec().encode(text).tolist(), codec().stop_ids[0]])


def test_trained_segments_are_to_the_bit_what_they_are_without_the_untrained_calls() -> None:
    async def play(titled: bool):
        policy = ByPrompt()

        async def title(client, *messages):
            if titled:
                await client.said(*messages, TITLE, model="title")

        async with playing(policy, untrained=titles) as (session, client):
            await title(client)
            first = await client.said(SYSTEM, USER)
            await title(client, SYSTEM, USER, first)
            second = await client.said(SYSTEM, USER, first, USER)
            await title(client)
            await client.said(SYSTEM, {"role": "user", "content": "A summary in place of it."})
            await client.said(SYSTEM, USER, first, USER, second, USER)
            return policy, await session.end()

    (_, bare), (policy, titled) = run(play(False)), run(play(True))
    same(bare, titled)
    assert bare.causes == ("", "new conversation") and not bare.untrained and dict(bare.counts) == {"calls": 4}
    assert dict(titled.counts) == {"calls": 4, "untrained": 3}
    asked = [call for call in policy.calls if "title" in shown(call.prompt_ids)]
    said = [ids for call, ids in zip(policy.calls, policy.answers, strict=True) if call in asked]
    assert len({call.seed for call in policy.calls}) == 7, "an answer's id is its seed"
    for one, call, ids in zip(titled.untrained, asked, said, strict=True):
        np.testing.assert_array_equal(one.token_ids, np.concatenate([call.prompt_ids, ids]))
        np.testing.assert_array_equal(one.token_ids[one.sampled], ids)
        np.testing.assert_array_equal(one.log_probs[one.sampled], -np.linspace(0.1, 1.0, len(ids), dtype=np.float32))
        assert not one.log_probs[~one.sampled].any()
        assert (one.rule, one.version_min, one.version_max) == ("model title", 3, 3)


def test_calls_at_once_in_any_order_of_arrival_are_trained_on_alike() -> None:
    async def play(first: str, second: str):
        async with playing(ByPrompt(), untrained=titles) as (session, client):
            for model in (first, second):
                await client.said(USER, model=model)
            return await session.end()

    same(run(play("title", "m")), run(play("m", "title")))


def test_an_untrained_conversation_goes_on_in_its_own_ids() -> None:
    policy = Policy(THINKING, "Yes.")

    async def play():
        async with playing(policy, untrained=titles) as (session, client):
            first = await client.said(USER, model="title")
            bare = {"role": "assistant", "content": first["content"]}
            await client.said(USER, bare, USER, model="title")
            return await session.end()

    recorded = run(play())
    assert recorded.segments == () and recorded.calls == () and recorded.text == ""
    (one,) = recorded.untrained
    np.testing.assert_array_equal(one.token_ids[one.sampled], np.concatenate(policy.answers))
    assert "<think>one and two</think>" in shown(one.token_ids)


def test_each_kind_is_fed_the_ids_that_the_other_sampled_and_only_trained_ones_are_in_the_mask() -> None:
    policy = Policy(THINKING, "<think>a plan</think>First this.", "Yes.")

    async def play():
        async with playing(policy, untrained=titles) as (session, client):
            first = await client.said(SYSTEM, USER)
            bare = {"role": "assistant", "content": first["content"]}
            plan = await client.said(SYSTEM, USER, bare, USER, model="title")
            planned = {"role": "assistant", "content": plan["content"]}
            await client.said(SYSTEM, USER, bare, USER, planned, USER)
            return await session.end()

    recorded = run(play())
    assert recorded.causes == ("", "history rewritten") and recorded.calls == ((0, 0), (1, 0))
    (one,) = recorded.untrained
    np.testing.assert_array_equal(one.token_ids[one.sampled], policy.answers[1])
    assert "<think>one and two</think>It is 3." in shown(one.token_ids)
    np.testing.assert_array_equal(
        recorded.segments[1].token_ids()[: len(one.token_ids)], one.token_ids
    )  # the plan is fed with its reasoning
    joint = whole(recorded)
    trained = np.concatenate([policy.answers[0], policy.answers[2]])
    np.testing.assert_array_equal(joint.token_ids[joint.loss_mask], trained)


def test_a_reply_that_both_kinds_gave_in_one_text_is_fed_to_each_in_its_own_ids() -> None:
    async def play(titled: bool):
        policy = Policy("<think>one and two</think>Yes.", *["<think>a title</think>Yes."] * titled, "No.")
        async with playing(policy, untrained=titles) as (session, client):
            first = await client.said(USER)
            bare = {"role": "assistant", "content": first["content"]}
            if titled:
                assert (await client.said(TITLE, model="title"))["content"] == first["content"]
            await client.said(USER, bare, USER, tools=[TOOL])
            if titled:
                await client.said(TITLE, bare, USER, model="title", tools=[TOOL])
            return policy, await session.end()

    (_, bare), (policy, titled) = run(play(False)), run(play(True))
    same(bare, titled)
    assert bare.causes == ("", "other tools")
    trained, untrained = (shown(call.prompt_ids) for call in policy.calls[2:])
    assert "<think>one and two</think>Yes." in trained and "a title" not in trained
    assert "<think>a title</think>Yes." in untrained and "one and two" not in untrained


def test_untrained_calls_use_up_none_of_the_trained_ones_and_have_the_endpoints_bound() -> None:
    async def play(*models: str, **bounds: Any):
        async with playing(Policy("Yes."), untrained=titles, **bounds) as (session, client):
            asked = [await client.ask(USER, model=model) for model in models]
            return [one.status_code for one in asked], await session.end()

    found, recorded = run(play("title", "m", "title", "m", most_calls=1))
    assert found == [200, 200, 200, 429] and recorded.calls == ((0, 0),) and len(recorded.untrained) == 2
    found, recorded = run(play("title", "title", "title", max_calls=2))
    assert found == [200, 200, 429] and recorded.fault


@pytest.mark.parametrize(
    ("bounds", "text"), [({"max_calls": 1}, "Hi."), ({"max_tokens": 195}, "Hi."), ({}, "x" * 2**20), ({}, "x " * 4096)]
)
def test_a_bound_that_refuses_a_call_truncates_the_trajectory_only_if_it_is_trained_on(
    bounds: dict[str, Any], text: str
) -> None:
    async def play(model: str):
        async with playing(Policy("Yes."), untrained=titles, max_request_bytes=2**21, **bounds) as (session, client):
            await client.said(USER)
            refused = await client.ask({"role": "user", "content": text}, model=model)
            assert refused.status_code in (400, 429), refused.text
            return await session.end()

    trained, untrained = run(play("m")), run(play("title"))
    assert (trained.truncated, untrained.truncated) == (True, False)
    assert trained.fault == untrained.fault != ""


def test_a_retry_of_an_untrained_call_is_sampled_once_and_the_count_is_exact() -> None:
    async def play():
        policy = Policy("Yes.")
        async with playing(policy, untrained=titles) as (session, client):
            first = await client.said(USER)
            body = {"model": "title", "max_tokens": 9, "messages": [USER, first, TITLE]}
            counted = (await client.post("/v1/messages/count_tokens", json=body)).json()["input_tokens"]
            answers = [
                await client.post("/v1/messages", json=body, headers={"x-stainless-retry-count": number})
                for number in ("0", "1")
            ]
            return counted, [one.json()["id"] for one in answers], policy, await session.end()

    counted, ids, policy, recorded = run(play())
    assert ids[0] == ids[1] and len(policy.calls) == 2 and counted == len(policy.calls[1].prompt_ids)
    assert dict(recorded.counts) == {"calls": 1, "untrained": 1, "retries": 1}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_a_rule_sees_the_model_the_headers_in_any_case_and_whether_a_tool_is_offered(path: str) -> None:
    seen: list[tuple[str, str | None, bool]] = []

    def note(call: AgentCall) -> str:
        seen.append((call.model, call.headers.get("X-Kind"), call.offers_tools))
        return ""

    messages = {"input": "Hi."} if path == "/v1/responses" else {"messages": [USER]}
    function = TOOL["function"]
    tool = {
        "/v1/chat/completions": TOOL,
        "/v1/responses": {"type": "function", **function},
        "/v1/messages": {"name": function["name"], "input_schema": function["parameters"]},
    }[path]

    async def play():
        async with playing(Policy("Yes."), untrained=note) as (_, client):
            for tools in ({}, {"tools": [tool]}):
                body = {"model": "a-model", "max_tokens": 9, **messages, **tools}
                if path == "/v1/responses":
                    body["max_output_tokens"] = body.pop("max_tokens")
                answer = await client.post(path, json=body, headers={"x-kind": '{"request_kind":"turn"}'})
                assert answer.status_code == 200, answer.text

    run(play())
    kind = '{"request_kind":"turn"}'
    assert seen == [("a-model", kind, False), ("a-model", kind, True)]


def test_untrained_calls_in_flight_at_the_end_leave_nothing() -> None:
    async def play():
        policy = Policy("Yes.", wait=asyncio.Event().wait)
        async with playing(policy, untrained=titles) as (session, client):
            waiting = asyncio.create_task(client.ask(USER, model="title"))
            while not policy.calls:
                await asyncio.sleep(0)
            recorded = await session.end()
            await waiting
            return recorded

    assert run(play()).untrained == ()
