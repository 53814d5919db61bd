"""Verdicts on programs, computed outside of the process that runs a program, from the program's output.

Invariants: expected outputs never leave this process. A verdict depends only on the program's output and the expected
value. A comparison never calls code of the program: its output is text, and its values are JSON of plain types.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from squelch.envs.sandbox.interpreter import read_value
from squelch.envs.sandbox.limits import Limits
from squelch.envs.sandbox.pool import Pool, Question, Run

TOLERANCE = 1e-6  # absolute and relative, if the expected number is written with a point or exponent
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", flags=re.ASCII)
LONGEST_NUMBER = 64  # characters; longer words are compared as text
REASONS = {
    "failed": "it ended with an error",
    "killed": "it was killed",
    "late": "it took too long",
    "flood": "it wrote too much",
    "lost": "its sandbox broke down",
    "unbegun": "the time for all tests was over",
}


@dataclass(frozen=True)
class Test:
    """One test. With a function, `question.arguments` are its arguments and `accepted` are the values that pass; else
    `question.stdin` is the standard input and `accepted` are the texts that pass."""

    question: Question
    accepted: tuple[Any, ...]

    __test__ = False  # not one of pytest's


@dataclass(frozen=True)
class Verdict:
    """Whether a program passed one test, and the reason if it did not."""

    passed: bool
    reason: str = ""
    detail: str = ""
    """The end of the program's error output, or of its output."""


def judge(
    pool: Pool, program: str, tests: Sequence[Test], limits: Limits, function: str | None = None, prelude: str = ""
) -> list[Verdict]:
    """A verdict for each test, in order."""
    runs = pool.run(program, [test.question for test in tests], limits, function, prelude)
    return [verdict(run, test, function is not None) for run, test in zip(runs, tests, strict=True)]


def verdict(run: Run, test: Test, is_call: bool) -> Verdict:
    """The verdict on one run. Only a program that ended by itself without an error can pass."""
    if run.outcome != "finished":
        last_line = "".join(run.error.strip().splitlines()[-1:])
        return Verdict(False, REASONS[run.outcome], last_line[:200])
    if not is_call:
        text = run.output.decode("utf-8", "replace")
        return _compared(any(same_text(text, accepted) for accepted in test.accepted), text)
    if run.value is None:
        return Verdict(False, "the call returned nothing", "")
    try:
        value = read_value(run.value)
    except ValueError as error:
        return Verdict(False, "the call's value cannot be read", str(error)[:200])
    return _compared(any(same_value(value, accepted) for accepted in test.accepted), str(run.value[:200]))


def _compared(same: bool, shown: str) -> Verdict:
    return Verdict(True) if same else Verdict(False, "wrong answer", shown[:200])


def same_text(found: str, expected: str) -> bool:
    """Whether the texts agree line by line and word by word, ignoring white space and empty lines at the end; numbers
    with a point are compared by value."""
    ours, theirs = _lines(found), _lines(expected)
    if len(ours) != len(theirs):
        return False
    return all(len(a) == len(b) and all(map(_same_word, a, b)) for a, b in zip(ours, theirs, strict=True))


def _lines(text: str) -> list[list[str]]:
    lines = [line.split() for line in text.strip().splitlines()]
    return [line for line in lines if line]


def _same_word(found: str, expected: str) -> bool:
    if found == expected:
        return True
    if not any(mark in expected for mark in ".eE") or max(len(found), len(expected)) > LONGEST_NUMBER:
        return False
    if NUMBER.fullmatch(found) and NUMBER.fullmatch(expected):
        return _close(float(found), float(expected))
    return False


def _close(found: float, expected: float) -> bool:
    if math.isnan(expected) or math.isinf(expected):
        return repr(found) == repr(expected)
    return math.isfinite(found) and abs(found - expected) <= TOLERANCE * max(1.0, abs(expected))


def same_value(found: Any, expected: Any) -> bool:
    """Whether plain data agree. Types must be equal, except for numbers. Both values come from JSON, so neither has a
    type that a program defined."""
    if isinstance(expected, bool) or isinstance(found, bool):
        return found is expected
    if isinstance(expected, float) and isinstance(found, (int, float)):
        return found == expected or (abs(found) < 1e300 and _close(float(found), expected))
    if isinstance(expected, int):
        return isinstance(found, (int, float)) and found == expected
    if isinstance(expected, (list, tuple)):
        return isinstance(found, list) and len(found) == len(expected) and all(map(same_value, found, expected))
    if isinstance(expected, dict):
        keys = {str(key): value for key, value in expected.items()}
        return (
            isinstance(found, dict)
            and found.keys() == keys.keys()
            and all(same_value(found[key], value) for key, value in keys.items())
        )
    return type(found) is type(expected) and bool(found == expected)
