"""What a trajectory at the endpoint records of its calls, and which of them it answers."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from squelch.actors.play.generation import GenerationFailed
from squelch.kit.records.failures import FailureCause
from tests.actors.endpoint.support import (
    CALLING,
    CONTEXT,
    LIMIT,
    SYSTEM,
    THINKING,
    TOOL,
    USER,
    Policy,
    codec,
    one_is_lost,
    playing,
    run,
    seeds,
    shown,
    until,
    whole,
)
from tests.actors.formats.test_own import SHOWS_TOOLS
from tests.actors.formats.test_own import codec as codec_of
from tests.kit.text.made import CHATML

pytestmark = pytest.mark.usefixtures("rendered_here")


@pytest.mark.parametrize("template", [SHOWS_TOOLS, CHATML], ids=["the template shows tools", "it shows none"])
def test_a_conversation_with_tools_is_one_segment_of_the_ids_that_were_fed_and_sampled(template: str) -> None:
    policy, one = Policy(CALLING, THINKING, "Yes."), codec_of(template)

    async def play():
        async with playing(policy, one=one) as (session, client):
            calling = await client.said(SYSTEM, USER, tools=[TOOL])
            result = {"role": "tool", "tool_call_id": calling["tool_calls"][0]["id"], "content": "3"}
            thinking = await client.said(SYSTEM, USER, calling, result, tools=[TOOL])
            bare = {"role": "assistant", "content": thinking["content"]}
            await client.said(SYSTEM, USER, calling, result, bare, USER, tools=[TOOL])
            return await session.end(), calling, thinking

    recorded, calling, thinking = run(play())
    (segment,) = recorded.segments
    assert recorded.causes == ("",) and recorded.calls == ((0, 0), (0, 1), (0, 2)) and recorded.text == "Yes."
    first, second, third = policy.answers
    result = {"role": "tool", "tool_call_id": "call_0", "name": "add", "content": "3"}
    fed = one.render([SYSTEM, USER], [TOOL])
    then = one.extend(fed, first, [result], [TOOL])
    last = one.extend(np.concatenate([fed, first, then]), second, [USER], [TOOL])
    np.testing.assert_array_equal(segment.token_ids(), np.concatenate([fed, first, then, second, last, third]))
    joint = whole(recorded)
    np.testing.assert_array_equal(joint.token_ids[joint.loss_mask], np.concatenate(policy.answers))
    reasoned = segment.turns[1]
    assert shown(joint.token_ids[reasoned.reasoning_start : reasoned.reasoning_end]) == "one and two"
    assert [turn.num_actions for turn in segment.turns] == [1, 1, 1] and all(t.format_valid for t in segment.turns)
    assert [call.seed for call in policy.calls] == [seeds("", 0, number) for number in range(3)]
    assert calling["content"] == "I add." and thinking["reasoning_content"] == "one and two"
    assert calling["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"b": 2, "a": 1}'}


def test_a_call_without_a_text_has_null_content_and_is_recognised_with_either() -> None:
    async def play():
        async with playing(Policy(CALLING.removeprefix("I add."), "Yes.")) as (session, client):
            reply = await client.said(USER, tools=[TOOL])
            result = {"role": "tool", "tool_call_id": reply["tool_calls"][0]["id"], "content": "3"}
            messages = [USER, reply, result]
            for content in (None, "", []):
                messages[1] = {**reply, "content": content}
                said = await client.said(*messages, tools=[TOOL])
                messages += [said, USER]
            return reply, await session.end()

    reply, recorded = run(play())
    assert reply["content"] is None and len(recorded.segments) == 1 and len(recorded.calls) == 4


def test_a_reasoning_whose_text_the_content_repeats_is_shown_beside_it() -> None:
    async def play():
        async with playing(Policy("<think>5</think>2+3=5")) as (_, client):
            return await client.said(USER)

    reply = run(play())
    assert (reply["content"], reply["reasoning_content"]) == ("2+3=5", "5")


def test_a_turn_that_was_cut_within_its_reasoning_shows_what_there_is_of_it() -> None:
    most = len(codec().encode("<think>one and"))

    async def play():
        async with playing(Policy(THINKING)) as (_, client):
            return (await client.ask(USER, max_tokens=most)).json()["choices"][0]

    choice = run(play())
    assert choice["finish_reason"] == "length" and not choice["message"]["content"]
    assert choice["message"]["reasoning_content"].startswith("one")


def test_a_call_that_is_no_json_is_shown_as_text_and_counts_as_badly_formed() -> None:
    async def play():
        async with playing(Policy("<tool_call>{add 1}</tool_call>")) as (session, client):
            reply = await client.said(USER, tools=[TOOL])
            again = await client.said(USER, reply, USER, tools=[TOOL])
            return reply, again, await session.end()

    reply, _, recorded = run(play())
    assert reply["content"] == "<tool_call>{add 1}</tool_call>" and "tool_calls" not in reply
    assert len(recorded.segments) == 1 and not recorded.segments[0].turns[0].format_valid


ADD = {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}
OFFERED = {
    "/v1/chat/completions": {"messages": [USER], "tools": [TOOL]},
    "/v1/responses": {"input": [USER], "tools": [{"type": "function", **ADD}]},
    "/v1/messages": {
        "max_tokens": 160,
        "messages": [USER],
        "tools": [{"name": "add", "description": "Adds.", "input_schema": ADD["parameters"]}],
    },
}


def said_in(path: str, answer: dict) -> tuple[str, int]:
    """(the text, the number of calls) of an answer."""
    if path == "/v1/chat/completions":
        message = answer["choices"][0]["message"]
        return message["content"], len(message.get("tool_calls", ()))
    if path == "/v1/messages":
        blocks = answer["content"]
        return blocks[0]["text"], sum(block["type"] == "tool_use" for block in blocks)
    return answer["output"][0]["content"][0]["text"], sum(item["type"] == "function_call" for item in answer["output"])


@pytest.mark.parametrize("path", OFFERED)
def test_calls_of_tools_that_were_not_offered_are_text(path: str) -> None:
    none = {"type": "none"} if path == "/v1/messages" else "none"

    async def play():
        async with playing(Policy(CALLING)) as (session, client):
            offered = OFFERED[path]
            bodies = ({**offered, "tools": []}, {**offered, "tool_choice": none}, offered)
            found = [await client.post(path, json=body) for body in bodies]
            return found, await session.end()

    found, recorded = run(play())
    said = [said_in(path, answer.json()) for answer in found]
    assert said[0] == said[1] == (CALLING, 0) and said[2] == ("I add.", 1)
    assert not any("x-squelch-adjusted" in answer.headers for answer in found)
    fed = [segment.token_ids()[: segment.turns[0].sample_start] for segment in recorded.segments]
    np.testing.assert_array_equal(fed[1], fed[2])  # the tools are shown under `none`, too
    assert all(segment.turns[0].format_valid for segment in recorded.segments)


def test_a_reply_whose_calls_are_text_is_continued_with_the_ids_that_were_sampled() -> None:
    policy = Policy(CALLING, THINKING)

    async def play():
        async with playing(policy) as (session, client):
            reply = await client.said(USER)
            await client.said(USER, reply, USER)
            return await session.end()

    recorded = run(play())
    assert recorded.causes == ("",) and len(recorded.calls) == 2


@pytest.mark.parametrize("path", OFFERED)
def test_a_client_that_takes_one_call_gets_the_first_and_the_rest_stays_sampled(path: str) -> None:
    policy = Policy(CALLING + CALLING, "It is 3.")
    one = {"parallel_tool_calls": False}
    if path == "/v1/messages":
        one = {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}

    async def play():
        async with playing(policy) as (session, client):
            answer = await client.post(path, json={**OFFERED[path], **one})
            return answer, await session.end()

    answer, recorded = run(play())
    assert said_in(path, answer.json()) == ("I add.", 1) and "x-squelch-adjusted" not in answer.headers
    (segment,) = recorded.segments
    turn = segment.turns[0]
    np.testing.assert_array_equal(segment.token_ids()[turn.sample_start : turn.sample_end], policy.answers[0])
    assert turn.num_actions == 1


def test_a_result_of_the_one_call_continues_the_turn_with_all_that_was_sampled() -> None:
    policy = Policy(CALLING + CALLING, "It is 3.")

    async def play():
        async with playing(policy) as (session, client):
            asked = {"tools": [TOOL], "parallel_tool_calls": False}
            reply = await client.said(USER, **asked)
            result = {"role": "tool", "tool_call_id": reply["tool_calls"][0]["id"], "content": "3"}
            await client.said(USER, reply, result, **asked)
            return await session.end()

    recorded = run(play())
    assert recorded.causes == ("",) and len(recorded.calls) == 2
    joint = whole(recorded)
    np.testing.assert_array_equal(joint.token_ids[joint.loss_mask], np.concatenate(policy.answers))


def test_a_stop_string_ends_what_the_client_sees_and_its_ids_stay_sampled() -> None:
    policy = Policy("Think. Observation: none", "Done.")

    async def play():
        async with playing(policy) as (session, client):
            answer = (await client.ask(USER, stop=["Observation:", "never"])).json()
            said = answer["choices"][0]["message"]["content"]
            for content in (said, said.strip() + " Observation:"):
                await client.said(USER, {"role": "assistant", "content": content}, USER)
            return answer["choices"][0], await session.end()

    choice, recorded = run(play())
    assert choice["message"]["content"] == "Think. " and choice["finish_reason"] == "stop"
    sampled = recorded.segments[0].turns[0]
    ids = recorded.segments[0].token_ids()[sampled.sample_start : sampled.sample_end]
    assert shown(ids) == "Think. Observation:" and not sampled.hit_token_limit
    assert recorded.causes == ("", "branch")


def test_a_stop_string_that_the_reasoning_mentions_does_not_end_the_turn() -> None:
    thought = "I end with Observation: as told."

    async def play():
        policy = Policy(f"<think>{thought}</think>Search. Observation: none")
        async with playing(policy) as (session, client):
            answer = (await client.ask(USER, stop="Observation:")).json()["choices"][0]
            return answer, await session.end()

    choice, recorded = run(play())
    assert choice["message"]["content"] == "Search. " and choice["message"]["reasoning_content"] == thought
    (segment,) = recorded.segments
    sampled = segment.token_ids()[segment.turns[0].sample_start : segment.turns[0].sample_end]
    assert shown(sampled) == f"<think>{thought}</think>Search. Observation:" and segment.turns[0].format_valid


def test_a_turn_at_its_limit_is_closed_by_what_is_fed() -> None:
    async def play():
        async with playing(Policy("It is quite long.", "Ok.")) as (session, client):
            reply = await client.ask(USER, max_tokens=3)
            said = reply.json()["choices"][0]
            await client.said(USER, said["message"], USER)
            return said, await session.end()

    said, recorded = run(play())
    (segment,) = recorded.segments
    first = segment.turns[0]
    assert said["finish_reason"] == "length" and first.hit_token_limit and not first.format_valid
    assert first.sample_end - first.sample_start == 3
    assert segment.token_ids()[first.sample_end] == codec().stop_ids[0]


@pytest.mark.parametrize("told", [True, False], ids=["a retry", "no header, and nobody got the first answer"])
def test_a_retry_gets_the_first_answer_and_never_a_second_sample(told: bool) -> None:
    async def play():
        gate = asyncio.Event()
        policy = Policy("One.", "Two.", wait=gate.wait)
        async with playing(policy) as (session, client):
            first = asyncio.create_task(client.ask(USER))
            while not policy.calls:
                await asyncio.sleep(0)
            first.cancel()
            await until(lambda: one_is_lost(session))
            headers = {"x-stainless-retry-count": "1"} if told else {}
            retry = asyncio.create_task(client.ask(USER, headers=headers))
            await until(lambda: session.counts["retries"])
            gate.set()
            answer = (await retry).json()
            late = (await client.ask(USER, headers={"x-stainless-retry-count": "2"})).json()
            other = (await client.ask(USER)).json()
            return answer, late, other, await session.end()

    answer, late, other, recorded = run(play())
    assert answer["id"] == late["id"] and answer["choices"][0]["message"]["content"] == "One."
    assert other["choices"][0]["message"]["content"] == "Two."
    assert recorded.calls == ((0, 0), (1, 0)) and dict(recorded.counts)["retries"] == 2


def test_sampling_goes_on_without_its_client_and_a_reply_that_nobody_saw_changes_no_later_history() -> None:
    async def play():
        gate = asyncio.Event()
        policy = Policy("One.", "Unseen.", "Three.", wait=gate.wait)
        gate.set()
        async with playing(policy) as (session, client):
            one = await client.said(USER)
            gate.clear()
            gone = asyncio.create_task(client.ask(USER, one, USER))
            while len(policy.calls) < 2:
                await asyncio.sleep(0)
            gone.cancel()
            await until(lambda: one_is_lost(session))
            gate.set()
            await until(lambda: len(policy.answers) == 2)
            await client.said(USER, one, {"role": "user", "content": "Another question."})
            return policy, await session.end()

    policy, recorded = run(play())
    assert recorded.causes == ("", "branch") and recorded.calls == ((0, 0), (0, 1), (1, 0))
    assert "Unseen" not in shown(recorded.segments[1].token_ids())
    joint = whole(recorded)
    np.testing.assert_array_equal(joint.token_ids[joint.loss_mask], np.concatenate(policy.answers))


def test_parallel_calls_have_segments_and_seeds_of_their_own() -> None:
    async def play():
        policy = Policy("Yes.", wait=lambda: until(lambda: len(policy.calls) in (1, 4, 6)))
        async with playing(policy) as (session, client):
            first = await client.said(USER)
            await asyncio.gather(*(client.ask(SYSTEM, {"role": "user", "content": text}) for text in "aab"))
            await asyncio.gather(*(client.ask(USER, first, USER) for _ in range(2)))
            return policy, await session.end()

    policy, recorded = run(play())
    assert sorted(recorded.causes) == ["", "branch", "branch", "new conversation", "other system message"]
    assert len({call.seed for call in policy.calls}) == 6, "equal requests at once are calls of their own"
    assert sorted(recorded.calls) == [(0, 0), (0, 1), (1, 0), (2, 0), (3, 0), (4, 0)]


def test_seeds_of_parallel_segments_do_not_depend_on_the_order_of_arrival() -> None:
    async def play(texts: str):
        policy = Policy("Yes.")
        async with playing(policy) as (_, client):
            await client.said(USER)
            for text in texts:
                await client.said(SYSTEM, {"role": "user", "content": text})
            return {(call.prompt_ids.tobytes(), call.seed) for call in policy.calls}

    assert run(play("abca")) == run(play("caba"))


def test_the_first_failure_of_sampling_fails_the_trajectory_whatever_comes_after() -> None:
    async def refuse(call):
        raise GenerationFailed("rollout worker rollout-3: gone")

    async def late(call):
        raise TimeoutError

    async def play(policy):
        async with playing(policy) as (session, client):
            answers = [await client.ask(USER), await client.ask(SYSTEM, USER)]
            return answers, await session.end()

    for policy, cause in ((refuse, FailureCause.GENERATION_ERROR), (late, FailureCause.GENERATION_TIMEOUT)):
        answers, recorded = run(play(policy))
        assert recorded.failure is not None and recorded.failure.cause is cause and not recorded.segments
        for answer in answers:
            assert answer.status_code == 503 and answer.headers["x-should-retry"] == "false"


def test_what_breaks_in_a_call_fails_its_trajectory_with_the_error() -> None:
    async def broken(call):
        raise KeyError("a fault")

    async def play():
        async with playing(broken) as (session, client):
            return await client.ask(USER), await session.end()

    answer, recorded = run(play())
    assert answer.status_code == 500 and "KeyError" in answer.json()["error"]["message"]
    assert recorded.failure is not None and recorded.failure.cause is FailureCause.ENVIRONMENT_ERROR


def test_bounds_on_calls_tokens_and_context_refuse_and_say_truncated() -> None:
    async def play(messages, most_calls=None, **settings):
        async with playing(Policy("Yes."), most_calls, **settings) as (session, client):
            answers = [await client.ask(*messages) for _ in range(3)]
            return answers[-1], await session.end()

    for bounds in ({"most_calls": 2}, {"max_calls": 2}):
        answer, recorded = run(play([USER], **bounds))
        assert answer.status_code == 429 and answer.headers["x-should-retry"] == "false"
        assert recorded.truncated and len(recorded.calls) == 2 and dict(recorded.counts) == {"calls": 2, "refused": 1}
    answer, recorded = run(play([USER], max_tokens=200))
    assert answer.status_code == 429 and answer.json()["error"]["code"] == "too_many_tokens" and recorded.truncated
    answer, recorded = run(play([{"role": "user", "content": "x " * CONTEXT}]))
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "context_length_exceeded"
    assert recorded.truncated and not recorded.segments and recorded.failure is None


def test_a_call_is_refused_where_its_whole_limit_does_not_fit() -> None:
    async def play(extra: int):
        async with playing(Policy("Yes.")) as (_, client):
            lengths = [len(codec().render([{"role": "user", "content": "x<" * number}])) for number in (1, 2)]
            number = 1 + (CONTEXT - LIMIT - lengths[0]) // (lengths[1] - lengths[0])
            return (await client.ask({"role": "user", "content": "x<" * (number + extra)})).status_code

    assert run(play(0)) == 200 and run(play(1)) == 400


def test_after_its_end_a_trajectory_answers_nothing_and_calls_in_flight_are_gone() -> None:
    async def play():
        policy = Policy("Yes.", wait=asyncio.Event().wait)
        async with playing(policy) as (session, client):
            waiting = asyncio.create_task(client.ask(USER))
            while not policy.calls:
                await asyncio.sleep(0)
            recorded = await session.end()
            return (await waiting), (await client.ask(USER)), recorded, await session.end()

    waiting, late, recorded, again = run(play())
    assert waiting.status_code == 410 and late.status_code == 410 and recorded == again and not recorded.segments
    assert late.json()["error"]["code"] == "trajectory_ended"
