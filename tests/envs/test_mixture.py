"""The schedule of several environments, and how they are named."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.envs.config import EnvironmentConfig, EnvironmentEntry
from squelch.envs.mixture import Entry, Mixture, Schedule, Turn

WEIGHTS = st.lists(st.one_of(st.integers(1, 40), st.decimals("0.01", "9", places=2).map(float)), min_size=1, max_size=6)


@settings(max_examples=40, deadline=None)
@given(weights=WEIGHTS, count=st.integers(1, 200))
def test_after_any_tickets_each_environment_is_within_one_ticket_of_its_weight(
    weights: list[float], count: int
) -> None:
    schedule, counts = Schedule(weights), [0] * len(weights)
    exact = [Fraction(repr(float(weight))) for weight in weights]
    for ticket in range(count):
        turn = schedule.turn(ticket)
        assert turn.before == counts[turn.entry], "an environment's tickets are counted without a gap"
        counts[turn.entry] += 1
        for number, weight in zip(counts, exact, strict=True):
            assert abs(number - weight * (ticket + 1) / sum(exact)) < 1


@settings(max_examples=20, deadline=None)
@given(weights=WEIGHTS, ticket=st.integers(0, 1_000))
def test_whose_turn_a_ticket_is_depends_on_nothing_but_its_number(weights: list[float], ticket: int) -> None:
    before = Schedule(weights)
    for earlier in range(0, ticket, 1 + ticket // 20):
        before.turn(earlier)
    assert before.turn(ticket) == Schedule(weights).turn(ticket)


def test_weights_are_ratios_and_equal_ones_take_turns() -> None:
    assert [Schedule([0.5, 0.5]).turn(k) for k in range(4)] == [Turn(0, 0), Turn(1, 0), Turn(0, 1), Turn(1, 1)]
    three, one = Schedule([3, 1]), Schedule([0.75, 0.25])
    assert [three.turn(k) for k in range(40)] == [one.turn(k) for k in range(40)]
    assert Schedule([1]).turn(10**12) == Turn(0, 10**12) and Schedule([1, 2]).turn(3 * 10**12) == Turn(1, 2 * 10**12)


def test_an_only_environment_has_no_label_and_several_have_distinct_ones() -> None:
    only, lake = Mixture.of(EnvironmentConfig()), EnvironmentEntry(name="FrozenLake", weight=1)
    assert only.labels == [] and only.shares == {"": 1.0} and Mixture.of(only) is only
    assert only.facts(include={"name"}) == {"name": "FrozenLake"}, "as a digest of a single environment has it"
    both = Mixture.several([lake, EnvironmentEntry(name="Sokoban", label="boxes", weight=3, max_tokens_per_turn=9)])
    assert both.shares == {"FrozenLake": 0.25, "boxes": 0.75} and both.name == "FrozenLake + boxes"
    assert both.heaviest is both.entries[1] and both.labelled("boxes").tokens(48) == 9
    with pytest.raises(ValueError, match="no environment labelled 'maze'; it has 'FrozenLake', 'boxes'"):
        both.labelled("maze")


def test_an_error_names_the_entry_of_the_list() -> None:
    entry = Entry(EnvironmentConfig(), "environments[1]", "boxes")
    assert entry.keyed("environment.options.size: bad; the environment. So") == (
        "environments[1].options.size: bad; the environment. So"
    )
    assert Entry(EnvironmentConfig()).keyed("environment.options.size") == "environment.options.size"
