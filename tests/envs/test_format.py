"""The turn format: what is well formed, what is executed, and that nothing breaks the parser."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.envs.config import FormatConfig
from squelch.envs.format import parse, reward_text, system_message, turn_message, well_formed
from squelch.envs.registry import make
from tests.envs.hostile_text import TAGS, hostile_texts

ACTIONS = ("Left", "Down", "Right", "Up")
CONFIG = FormatConfig()
read = make("FrozenLake").read_action


def test_a_well_formed_turn_is_read():
    turn = parse(" i am at 1 2 so up </think> <answer> Up || Left </answer>", 2, read)
    assert (turn.reasoning, turn.actions, turn.valid, turn.reason) == ("i am at 1 2 so up", ("Up", "Left"), True, None)


@pytest.mark.parametrize(
    ("text", "actions", "reason"),
    [
        ("", (), "no </think>"),
        ("go up", (), "no </think>"),
        ("<answer> Up </answer>", (), "no </think>"),
        ("<answer> Up </answer> </think>", (), "no <answer>"),
        ("a </think> Up", (), "no <answer>"),
        ("a </think> <answer> Up || Le", (), "no </answer>"),
        ("a </think> <answer> Up || Jump || Left </answer>", ("Up",), "unknown action"),
        ("a </think> <answer> Jump || Up </answer>", (), "unknown action"),
        ("a </think> <answer> Up Left </answer>", (), "unknown action"),
        ("a </think> <answer> </answer>", (), "empty action"),
        ("a </think> <answer> Up || </answer>", ("Up",), "empty action"),
        ("a </think> <answer> Up || Left || Down </answer>", ("Up", "Left"), "more than 2 actions"),
        ("a </think> b <answer> Up </answer>", ("Up",), "text between </think> and <answer>"),
        ("a </think> <answer> Up </answer> b", ("Up",), "text after </answer>"),
        ("a <think> </think> <answer> Up </answer>", ("Up",), "<think> again"),
        ("a </think> b </think> <answer> Up </answer>", ("Up",), "more than one </think>"),
        ("a <answer> Left </answer> </think> <answer> Up </answer>", ("Up",), "more than one <answer>"),
        ("a </think> <answer> Up </answer> <answer> Left </answer>", ("Up",), "more than one <answer>"),
        ("a </think> <answer> Up </answer> </answer>", ("Up",), "more than one </answer>"),
    ],
)
def test_a_badly_formatted_turn_says_why_and_what_is_executed(text, actions, reason):
    turn = parse(text, 2, read)
    assert (turn.actions, turn.valid, turn.reason) == (actions, False, reason)


@pytest.mark.parametrize("text", ["</think><answer>up</answer>", "x</think>\n<answer>\n UP \n</answer>\n"])
def test_case_and_white_space_do_not_matter(text):
    turn = parse(text, 2, read)
    assert (turn.actions, turn.valid) == (("Up",), True)


@given(
    reasoning=st.text().filter(lambda text: not any(tag in text for tag in TAGS)),
    actions=st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=4),
)
def test_what_we_write_is_read_back(reasoning, actions):
    turn = parse(well_formed(reasoning, actions), 4, read)
    assert (turn.reasoning, turn.actions, turn.valid) == (reasoning.strip(), tuple(actions), True)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.text(max_size=8), st.sampled_from([*TAGS, *ACTIONS])), max_size=30).map("".join))
def test_any_text_parses_to_known_actions_within_the_limit(text):
    check_invariants(text)


def check_invariants(text: str) -> None:
    turn = parse(text, 2, read)
    assert set(turn.actions) <= set(ACTIONS) and len(turn.actions) <= 2
    assert turn.valid == (turn.reason is None)
    if turn.valid:
        assert turn.actions
        assert [text.count(tag) for tag in TAGS[:4]] == [0, 1, 1, 1]


def test_ten_thousand_hostile_texts_neither_raise_nor_hang():
    for text in hostile_texts(random.Random(0), 10_000, ACTIONS):
        check_invariants(text)


def test_the_system_message_holds_the_rules_in_few_words():
    for name in ("FrozenLake", "Sokoban"):
        env = make(name)
        words = system_message(env, CONFIG).split()
        assert len(words) <= 45
        assert {*env.actions, "<think>", "</think>", "<answer>", "</answer>", "||", "2"} <= set(words)
    assert "||" not in system_message(env, FormatConfig(max_actions_per_turn=1))
    assert "slip" not in system_message(make("FrozenLake", options={"slip_rate": 0.0}), CONFIG)


def test_turn_messages_tell_state_actions_left_and_the_last_reward():
    assert turn_message("P _\n_ G", 10, None) == "P _\n_ G\nactions left 10"
    assert turn_message("P _\n_ G", 8, -0.2) == "reward -0.2\nP _\n_ G\nactions left 8"


@pytest.mark.parametrize(
    ("reward", "text"), [(0.0, "0.0"), (-0.0, "0.0"), (-0.04, "0.0"), (-0.1 - 0.1, "-0.2"), (10.9, "10.9")]
)
def test_rewards_are_written_with_one_decimal_and_no_negative_zero(reward, text):
    assert reward_text(reward) == text
