"""Which segment a request continues, and that nothing sampled is encoded again, whatever an agent does to a history."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.actors.endpoint.canonical import Message, Request, tool_use
from squelch.actors.endpoint.config import EndpointConfig
from squelch.actors.endpoint.session import Session
from squelch.actors.play.codec import ChatCodec
from tests.actors.endpoint.support import CALLING, LIMIT, TOOL, Policy, codec, seeds, shown, whole
from tests.kit.text.made import chatml_bpe, save_folder

RULES, QUESTION, NEXT = (
    Message("system", "You are brief."),
    Message("user", "What is 1 + 2?"),
    Message("user", "And then?"),
)
ORDINARY = [index for index in range(300) if codec().token_bytes(index)]

pytestmark = pytest.mark.usefixtures("rendered_here")


def session_of(sample, context: int = 100_000) -> Session:
    return Session("", "token", codec(), EndpointConfig(), context, sample, seeds, LIMIT)


NUMBERS = itertools.count()


async def told(session: Session, *messages: Message, tools=(), rule: str = "") -> Message:
    """The assistant's message that answers these."""
    answer = session.answer(Request(messages, tools), str(next(NUMBERS)).encode(), str, rule)
    answer.delivered = True
    reply = await answer.task
    return Message("assistant", reply.content, reply.calls, reply.reasoning)


def causes_of(*texts: str):
    """Decorates a scenario: runs it with a policy that says the texts; returns what was recorded."""

    def play(scenario):
        async def whole_run():
            policy = Policy(*texts)
            session = session_of(policy)
            await scenario(session)
            return await session.end(), policy

        return asyncio.run(whole_run())

    return play


VARIANTS = {
    "as it was": lambda said: said,
    "without its reasoning": lambda said: replace(said, reasoning=""),
    "with white space at its ends": lambda said: replace(said, content=f"\n{said.content} "),
    "with the keys of its arguments in another order": lambda said: replace(
        said, calls=tuple(tool_use(call.id, call.name, '{"a": 1,  "b": 2}', "") for call in said.calls)
    ),
}


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_a_reply_is_recognised(variant) -> None:
    async def scenario(session):
        first = await told(session, QUESTION, tools=(TOOL,))
        result = Message("tool", "3", call_id=first.calls[0].id)
        await told(session, QUESTION, variant(first), result, tools=(TOOL,))

    recorded, _ = causes_of(f"<think>a</think>{CALLING}")(scenario)
    assert len(recorded.segments) == 1


@pytest.mark.parametrize(
    ("sampled", "returned", "is_same"),
    [
        ("1.0", "1", True),
        ('[1e3, {"x": -0.0}]', '[1000, {"x": 0}]', True),
        ("1e21", "1e+21", True),
        ("100000000000000000000.0", "100000000000000000000", True),
        ("1.5", "1", False),
        ("1", "true", False),
        ("1", '"1"', False),
    ],
)
def test_a_reply_whose_numbers_come_back_in_another_spelling_is_recognised(
    sampled: str, returned: str, is_same: bool
) -> None:
    async def scenario(session):
        first = await told(session, QUESTION, tools=(TOOL,))
        (call,) = first.calls
        again = replace(first, calls=(tool_use(call.id, call.name, f'{{"a": {returned}}}', ""),))
        await told(session, QUESTION, again, Message("tool", "3", call_id=call.id), tools=(TOOL,))

    recorded, _ = causes_of(f'<tool_call>{{"name": "add", "arguments": {{"a": {sampled}}}}}</tool_call>')(scenario)
    assert len(recorded.segments) == (1 if is_same else 2)


REWRITES = {
    "other content": lambda said: replace(said, content="I multiply."),
    "other reasoning": lambda said: replace(said, reasoning="b"),
    "without its call": lambda said: replace(said, calls=()),
    "another id": lambda said: replace(said, calls=tuple(replace(call, id="x") for call in said.calls)),
    "other arguments": lambda said: replace(said, calls=(tool_use(said.calls[0].id, "add", '{"a": 1}', ""),)),
    "another name": lambda said: replace(said, calls=tuple(replace(call, name="sub") for call in said.calls)),
    "another role": lambda said: replace(said, role="user"),
}


@pytest.mark.parametrize("rewrite", REWRITES.values(), ids=REWRITES)
def test_a_reply_that_is_not_ours_begins_a_segment(rewrite) -> None:
    async def scenario(session):
        first = await told(session, QUESTION, tools=(TOOL,))
        await told(session, QUESTION, rewrite(first), NEXT, tools=(TOOL,))

    recorded, _ = causes_of(f"<think>a</think>{CALLING}")(scenario)
    assert recorded.causes == ("", "history rewritten")


def test_messages_in_another_order_are_another_history() -> None:
    async def scenario(session):
        one = await told(session, RULES, QUESTION, NEXT)
        await told(session, RULES, NEXT, QUESTION, one, NEXT)

    recorded, policy = causes_of("One.", "Two.")(scenario)
    assert recorded.causes == ("", "new conversation")
    assert policy.calls[1].prompt_ids.tolist() != policy.calls[0].prompt_ids.tolist()


def test_each_cause_of_a_new_segment_is_told() -> None:
    async def scenario(session):
        one = await told(session, RULES, QUESTION)
        two = await told(session, RULES, QUESTION, one, NEXT)
        await told(session, RULES, QUESTION, one, NEXT, two, QUESTION)
        await told(session, RULES, QUESTION, one, Message("user", "Something else?"))  # branch
        await told(
            session,
            RULES,
            QUESTION,
            Message("assistant", "mine"),
            NEXT,
            Message("assistant", "too"),
            NEXT,
            Message("assistant", "x"),
            NEXT,
        )
        await told(session, RULES, QUESTION, Message("user", "In short: 3."))  # compaction
        await told(session, Message("system", "Be long."), QUESTION, one, NEXT)
        await told(session, RULES, QUESTION, one, NEXT, tools=(TOOL,))
        await told(session, RULES, Message("user", "A task for another."))

    recorded, _ = causes_of("One.", "Two.", "Three.", "Four.")(scenario)
    assert recorded.causes == (
        "",
        "branch",
        "history rewritten",
        "compaction",
        "other system message",
        "other tools",
        "new conversation",
    )
    assert recorded.calls[:3] == ((0, 0), (0, 1), (0, 2))


def test_of_several_segments_the_longest_history_is_continued_then_the_latest() -> None:
    async def scenario(session):
        one = await told(session, QUESTION)
        two = await told(session, QUESTION, one, NEXT)
        other = await told(session, QUESTION, one, Message("user", "B"))
        assert other == two
        again = await told(session, QUESTION, one, NEXT)  # a branch with the same messages as the first segment
        await told(session, QUESTION, one, NEXT, again, QUESTION)

    recorded, _ = causes_of("Yes.")(scenario)
    assert recorded.calls[-1] == (2, 1)


def test_replies_in_a_rewritten_history_stand_for_their_ids_where_they_can() -> None:
    """The result of a tool is cut short afterwards, as many agents do; the replies before and behind it are ours."""

    async def scenario(session):
        one = await told(session, RULES, QUESTION)
        two = await told(session, RULES, QUESTION, one, Message("user", "A long result."))
        await told(session, RULES, QUESTION, one, Message("user", "[cut]"), replace(two, reasoning=""), NEXT)

    recorded, policy = causes_of("<think>a</think>One.", "<think>b</think>Two.", "Three.")(scenario)
    assert recorded.causes == ("", "history rewritten")
    prompt = policy.calls[2].prompt_ids.tolist()
    for ids in policy.answers[:2]:
        text, part = ids.tolist(), len(ids)
        assert any(prompt[k : k + part] == text for k in range(len(prompt)))
    assert "[cut]" in shown(prompt) and "A long result" not in shown(prompt)
    joint = whole(recorded)
    np.testing.assert_array_equal(joint.token_ids[joint.loss_mask], np.concatenate(policy.answers))


def test_examples_of_the_agents_own_are_rendered_and_the_replies_after_them_are_ids() -> None:
    example = (QUESTION, Message("assistant", "An example."), NEXT)

    async def scenario(session):
        one = await told(session, *example)
        await told(session, *example, one, QUESTION)

    recorded, policy = causes_of("One.", "Two.")(scenario)
    assert len(recorded.segments) == 1
    shown_example = [{"role": one.role, "content": one.content} for one in example]
    np.testing.assert_array_equal(policy.calls[0].prompt_ids, codec().render(shown_example))


REMOVES = (
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content and loop.index0 > ns.last %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""As Qwen3's: reasoning is shown behind the last message of the user alone."""


def test_where_the_template_removes_reasoning_a_segment_begins_with_what_it_writes(tmp_path) -> None:
    one = ChatCodec(save_folder(tmp_path, chatml_bpe(), REMOVES), keeps_reasoning=False)
    policy = Policy("<think>a</think>One.", "<think>b</think>Two.", "Three.", "Four.")

    async def play():
        session = Session("", "token", one, EndpointConfig(), 100_000, policy, seeds, LIMIT)
        first = await told(session, QUESTION)
        result = Message("tool", "3", call_id="call")
        second = await told(session, QUESTION, first, result)
        bare = [replace(reply, reasoning="") for reply in (first, second)]
        third = await told(session, QUESTION, bare[0], result, bare[1], NEXT)
        await told(session, QUESTION, bare[0], result, bare[1], NEXT, third, QUESTION)
        return await session.end()

    recorded = asyncio.run(play())
    assert recorded.causes == ("", "template") and recorded.calls == ((0, 0), (0, 1), (1, 0), (1, 1))
    history = [
        QUESTION,
        Message("assistant", "One."),
        Message("tool", "3"),
        Message("assistant", "Two."),
        NEXT,
    ]
    wanted = one.render([{"role": said.role, "content": said.content} for said in history])
    np.testing.assert_array_equal(policy.calls[2].prompt_ids, wanted)
    joint = whole(recorded)
    np.testing.assert_array_equal(joint.token_ids[joint.loss_mask], np.concatenate(policy.answers))


class Random:
    """Samples any ids, which no text would be encoded to, drawn by the test."""

    def __init__(self, data: st.DataObject) -> None:
        self.data, self.policy = data, Policy()
        self.prompts: list[np.ndarray] = []
        self.rules: list[str] = []

    async def __call__(self, call):
        self.prompts.append(call.prompt_ids)
        self.policy.calls.append(call)
        ids = self.data.draw(st.lists(st.sampled_from(ORDINARY), min_size=1, max_size=8))
        ends = self.data.draw(st.booleans())
        return self.policy.complete(call, [*ids, *(codec().stop_ids[:1] if ends else ())])


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_whatever_an_agent_does_every_sampled_id_is_in_one_mask_once_and_is_never_encoded_again(data) -> None:
    """Two agents, each with its own trajectory, continue, branch, rewrite and begin conversations in any order, with
    calls that are trained on and others that are not."""

    async def play():
        policies = [Random(data), Random(data)]
        sessions = [session_of(policy) for policy in policies]
        histories: list[list[list[Message]]] = [[], []]
        for _ in range(data.draw(st.integers(1, 8))):
            who = data.draw(st.integers(0, 1))
            known = histories[who]
            kind = data.draw(st.sampled_from(["new", "continue", "rewrite"])) if known else "new"
            messages = [RULES, QUESTION] if kind == "new" else list(data.draw(st.sampled_from(known)))
            if kind == "rewrite":
                place = data.draw(st.integers(0, len(messages) - 1))
                messages[place] = replace(messages[place], content=messages[place].content + "!")
            if kind != "new":
                messages.append(Message(*data.draw(st.sampled_from([("user", "more"), ("tool", "3")]))))
            before = len(policies[who].prompts)
            policies[who].rules.append(data.draw(st.sampled_from(["", "", "left out"])))
            reply = await told(sessions[who], *messages, rule=policies[who].rules[-1])
            bare = data.draw(st.booleans())
            known.append([*messages, replace(reply, reasoning="") if bare else reply])
            prompt = policies[who].prompts[before].tolist()
            assert kind == "rewrite" or all(holds(prompt, ids) for ids in ids_in(messages, policies[who], known))
        return policies, [await session.end() for session in sessions]

    def ids_in(messages, policy, known):
        """The ids of the replies among the messages that the policy alone can have said, behind the last one that the
        agent wrote in its place: those before it are shown as text."""
        said = [history[-1] for history in known]
        own = [k for k, one in enumerate(messages) if one.role == "assistant" and one not in said]
        behind = messages[own[-1] :] if own else messages
        return [
            ids
            for answer, history in zip(policy.policy.answers, known, strict=False)
            if history[-1] in behind and sum(other[-1] == history[-1] for other in known) == 1
            for ids in [answer.tolist()]
        ]

    def holds(prompt, ids):
        return any(prompt[k : k + len(ids)] == ids for k in range(len(prompt) - len(ids) + 1))

    policies, recorded = asyncio.run(play())
    for policy, one in zip(policies, recorded, strict=True):
        said = list(zip(policy.rules, policy.policy.answers, strict=True))
        trained = [ids for rule, ids in said if not rule]
        assert len(one.calls) == len(set(one.calls)) == len(trained)
        for (segment, turn), ids in zip(one.calls, trained, strict=True):
            found = one.segments[segment].turns[turn]
            own = one.segments[segment].token_ids()[found.sample_start : found.sample_end]
            np.testing.assert_array_equal(own, ids)
        if one.segments:
            joint = whole(one)
            assert int(joint.loss_mask.sum()) == sum(map(len, trained))
            assert np.all(joint.log_probs[~joint.loss_mask] == 0) and np.all(joint.log_probs[joint.loss_mask] < 0)
        left_out = [index for aside in one.untrained for index in aside.token_ids[aside.sampled].tolist()]
        assert sorted(left_out) == sorted(index for rule, ids in said if rule for index in ids.tolist())
