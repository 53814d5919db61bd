"""What finds an answer's beginning finds the first one, in time that grows with the text alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squelch.kit.text.answer_start import COMMON, AnswerStart, asked_for, other_ways

HOSTILE = ("re:(a+)+$", "re:(a|aa)+b", "re:(.*)*x", "re:(a?){100}a{100}b", r"re:(\pL+)+\pN")
"""Expressions that take a backtracking engine ages."""


@pytest.mark.parametrize(
    ("pattern", "text", "place"),
    [
        (r"\boxed{", r"so \boxed{4}, or \boxed{5}", 3),
        ("####", "12 + 30 = 42\n#### 42", 13),
        ("Answer:", "answer: 42", -1),
        ("re:(?i)answer:", "é 漢 \ud800 answer: 42", 6),
        (r"re:(?m)^\d+$", "12 + 30\n42", 8),
        ("####", "", -1),
    ],
)
def test_the_first_occurrence_counts_in_characters(pattern: str, text: str, place: int) -> None:
    assert AnswerStart(pattern).find(text) == place


@pytest.mark.parametrize("pattern", HOSTILE)
def test_a_hostile_expression_takes_no_longer_for_its_repetitions(pattern: str) -> None:
    """A backtracking engine would take more than 2 ** 1000 steps; the test ends at all only in a linear one."""
    AnswerStart(pattern).find("a" * 100_000)


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("", "must have 1 to 200 characters"),
        ("re: ", "must have 1 to 200 characters"),
        ("x" * 201, "must have 1 to 200 characters"),
        ("re:x*", "matches an empty text"),
        ("re:(", "missing"),
        ("re:(?=x)", "invalid perl operator"),
        (r"re:(x)\1", "invalid escape sequence"),
        ("re:(x{1000}){1000}", "invalid repetition size"),
    ],
)
def test_a_pattern_that_finds_nothing_or_cannot_be_bounded_is_refused(pattern: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        AnswerStart(pattern)


@given(st.text(max_size=200), st.text("ab#é漢\\", min_size=1, max_size=3).filter(str.strip))
def test_a_text_and_its_escaped_expression_find_the_same(text: str, sought: str) -> None:
    escaped = "".join(f"\\x{{{ord(one):x}}}" for one in sought)
    assert AnswerStart(f"re:{escaped}").find(text) == AnswerStart(sought).find(text)


def test_what_half_of_the_prompts_ask_for_is_proposed() -> None:
    asks = [rf"End with {name}" for name in COMMON]
    assert [asked_for([one, "Name a season."]) for one in asks] == list(COMMON)
    assert asked_for(["#### please", "What?", "Why?"]) == asked_for([]) == ""
    assert r"--answer '\boxed{'" in other_ways(asked_for([r"Put it in \boxed{}."]), "--{} {}")
