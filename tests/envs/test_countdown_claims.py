"""Sums that a reasoning states are true or false as arithmetic is, and its numbers are the given ones or not."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.envs.countdown.claims import Sum
from squelch.envs.countdown.environment import WORDS, Countdown, puzzle_text

JUDGE = Countdown.judge()
PUZZLE = JUDGE.facts("Numbers: 6, 9, 12\nTarget: 7")


def verdicts(text: str) -> list[bool]:
    return [JUDGE.holds(claim, PUZZLE) for claim in JUDGE.claims(text)]


@pytest.mark.parametrize("wording", WORDS.values(), ids=WORDS)
@given(numbers=st.lists(st.integers(1, 999), min_size=1, max_size=6), target=st.integers(1, 999))
@settings(max_examples=60, deadline=None)
def test_a_puzzle_is_read_back_from_any_style_out_of_a_whole_prompt(wording, numbers, target) -> None:
    text = puzzle_text(numbers, target, wording)
    rules = Countdown(prompt="natural").rules()
    for around in (text, f"<|user|>{text}\nactions left 1<|end|>", f"{rules}\nNumbers: 1, 2\nTarget: 3\n{text}\n"):
        facts = JUDGE.facts(around)
        assert sorted(facts.numbers.elements()) == sorted(numbers) and facts.target == target
    assert JUDGE.facts("no puzzle 1 2 3") is None


SIGNS = {"+": ("+", "plus"), "-": ("-", "−", "minus"), "*": ("*", "×", "x", "times"), "/": ("/", "÷", "divided by")}
VALUES = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": Fraction}


@given(a=st.integers(0, 99), b=st.integers(1, 99), error=st.integers(-3, 3), data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_stated_sum_is_true_as_arithmetic_is(a: int, b: int, error: int, data) -> None:
    sign = data.draw(st.sampled_from(list(SIGNS)))
    value = VALUES[sign](a, b)
    if value < 0 or Fraction(value).denominator > 1 or value + error < 0:
        return
    spoken = data.draw(st.sampled_from(SIGNS[sign]))
    equals = data.draw(st.sampled_from([" = ", "=", " is ", " equals ", " makes ", " gives "]))
    (claim, _) = JUDGE.claims(f"first {a} {spoken} {b}{equals}{value + error}. so")
    assert isinstance(claim, Sum) and claim.holds(PUZZLE) == (error == 0)


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("The numbers are 6, 9 and 12 and the target is 7. 12 / 6 = 2. 9 - 2 = 7. That is the target.", [True] * 7),
        ("numbers 6 9 12 target 7 then 12 / 6 is 2 then 9 - 2 is 7", [True] * 6),
        ("target 7 from 6 9 11", [True, False]),
        ("-3 + 12 - 2 = 7", []),
        ("6 - 9 = -3. -3 + 12 - 2 = 7", [True, True]),
        ("2.5 * 2 + 2 = 7", []),
        ("2^3 + 1 = 9", []),
        ("x + 6 + 9 = 27", []),
        ("-(3 + 12) = -15", []),
        ("**12 / 6 = 2** and then try - 9 - 2 = 7", [True] * 4),
        ("2 ** 3 = 8", []),
        ("6 + 9 does not make 20. it doesn't reach 7 and cannot make 7", []),
        ("9 + 12 is 14 more than 7", []),
        ("from 6 6 9", [False]),
        ("12 / 6 = 3", [False, True]),
        ("12 / 6 = 2. 2 * 9 = 18. That is not the target.", [True, True, True, True, True]),
        ("12 / 6 = 2. That is the target.", [True, True, False]),
        ("5 + 2 = 7", [True, False]),
        ("9 - (12 / 6) = 9 - 2 = 7", [True, True, True]),
        ("9 - (12 / 6) = 7", [True, True]),
        ("6 + 6 = 12", [True, False]),
        ("6 * 9 is not 7", [True, True]),
        ("12 / 9 = 1.33", [True, True]),
        ("12 / (9 - 9) = 7", [False, False]),
        ("I want 8", [False]),
        ("That is the target.", []),
        ("Let me think. The large ones may help. So I try this.", []),
        ("I go step by step, in 3 steps.", []),
        ("First I divide 12 by 6 to get 2. Then 9 - 2 = 7.", [True, True]),
        ("I need to make 7. To get 7 I try 9 - 2.", [True, True]),
        ("With 6, 9 and 12 I have to reach 8.", [True, False]),
        ("6 and 3 make 9, and we get 9.", []),
        ("Using 9 and 12, 12 - 9 = 3.", [True, True, True]),
        ("9 / 6 = 1.5. 1.5 * 12 = 18.", [True, True]),
        ("9 - 12 = -3. -3 + 6 = 3", [True, True]),
        ("12 - 6 = 6. 9 - 6 = 3. 6 + 6 = 12", [True, True, True, True, True, True]),
        ("12 - 9 = 3. 3 + 3 = 6", [True, True, True, False]),
        ("6 + 9 = 15. Now I have 15 and 12.", [True, True, True]),
        ("6 + 9 = 15. Now I have 14 and 12.", [True, True, False]),
        ("12 / 6 = 2. Now I have 9 and 2 left. 9 - 2 = 7.", [True] * 5),
        ("To reach 7 from 9, I need to make 2 from 6 and 12.", [True, True]),
        ("I want to make 7. First make 2: 12 / 6 = 2.", [True, True, True]),
        ("I want to make 7. The target is 8. So I have to reach 7.", [True, False, True]),
        ("target - 9 = -2", []),
        ("The target minus 9 + 2 = 0", []),
        ("12 / 9 = 1 remainder 3", []),
        ("12 / 9 = 1 with a remainder of 3, 12 / 9 = 1 (remainder 3) and 12 / 9 = 1 r 3.", []),
        ("12 / 9 = 1 1/3. 12 / 9 is 1 and 1/3.", []),
        ("12 / 6 = 2 and 9 / 3 = 3", [True, True, True, False]),
        ("12 * 12 * 6 * 9 = 7,776.", [True, False]),
        ("12 * 12 * 6 * 9 is 1,776", [False, False]),
        ("the target is 1,440", [False]),
        ("the numbers are 6,900,12", []),
    ],
)
def test_each_claim_is_judged_on_its_own(text: str, held: list[bool]) -> None:
    assert verdicts(text) == held


def test_no_generic_demonstration_claims_anything() -> None:
    for wording in WORDS.values():
        assert not any(JUDGE.claims(text) for part in wording.generic for text in part)


def test_long_and_nested_texts_are_read_in_little_time() -> None:
    for text in ("(" * 20_000, "1 + " * 5_000, "1+" * 10_000 + "1=2", "9" * 20_000, "1 = " * 5_000, "with 1 " * 5_000):
        JUDGE.claims(text)
