"""Comparing what came out with what was expected: plain data only, whatever it is."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.envs.sandbox import Question, Run, Test
from squelch.envs.sandbox.verdicts import same_text, same_value, verdict

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@settings(deadline=None)
@given(plain)
def test_a_value_is_the_same_as_itself_through_the_channel(value: object) -> None:
    assert same_value(json.loads(json.dumps(value)), value)


@settings(deadline=None)
@given(plain, plain)
def test_different_values_differ(found: object, expected: object) -> None:
    if not same_value(found, expected):
        assert json.dumps(found, sort_keys=True) != json.dumps(expected, sort_keys=True)
    elif isinstance(expected, (str, bool, type(None))):
        assert type(found) is type(expected) and found == expected


def test_types_that_python_takes_for_equal_are_distinguished() -> None:
    assert not same_value(1, True) and not same_value(True, 1) and not same_value(0, False) and not same_value("1", 1)
    assert same_value(1.0, 1) and same_value(2, 2.0) and same_value([1, [2]], (1, (2,)))
    assert not same_value(10**400, 1.5) and not same_value(float("nan"), 1.5) and not same_value(float("inf"), 1.5)


def test_text_is_compared_by_words_and_numbers_with_a_point_by_value() -> None:
    assert same_text("1 2\n3  \n\n", "1 2\n3") and same_text("0.3333333\n", "0.33333334") and same_text("1e-7", "0.0")
    assert not same_text("1 2 3", "1 2\n3") and not same_text("12", "13") and not same_text("1.0", "1")
    assert not same_text("0.34", "0.33") and not same_text("nan", "0.5") and not same_text("", "0")


@settings(max_examples=2000, deadline=None)
@given(st.text(max_size=40), st.text(max_size=20))
def test_comparing_any_text_never_raises(found: str, expected: str) -> None:
    same_text(found, expected)
    assert same_text(expected, expected)


@settings(deadline=None)
@given(st.binary(max_size=300), st.sampled_from(["finished", "failed", "killed", "late", "flood", "lost", "unbegun"]))
def test_only_what_ended_well_and_is_right_passes(data: bytes, outcome: str) -> None:
    call = Test(Question(arguments=(1,)), (["secret", 71],))
    assert not verdict(Run(outcome, value=data), call, is_call=True).passed
    right = verdict(Run(outcome, value=b'["secret",71]'), call, is_call=True)
    assert right.passed == (outcome == "finished")
    assert verdict(Run(outcome, output=data), Test(Question(), ("secret 71",)), is_call=False).passed == (
        outcome == "finished" and same_text(data.decode("utf-8", "replace"), "secret 71")
    )


def test_values_that_cannot_be_read_are_wrong_not_fatal() -> None:
    call = Test(Question(), (1,))
    others = [text.encode(code) for text in ("1", "[1]") for code in ("utf-16", "utf-16-le", "utf-32", "utf-8-sig")]
    for data in (b"[" * 200_000, b"1" * 5000, b"{", b"\xff", b"1 1", *others):
        assert verdict(Run("finished", value=data), call, is_call=True).reason == "the call's value cannot be read"
