"""Programming problems, and a generator of short problems with tests, solutions and near misses.

Three difficulties, each a composition of small operations with their numbers:

- easy: `f(x)`, two successive operations on an integer.
- medium: `f(a)`, three operations on a list of integers: keep some, change each, combine them.
- hard: a program that reads a line of integers and prints two such results.

Invariants: a problem follows from its text (the inputs of its tests are drawn from the text's digest), so two problems
are the same iff their texts are. Expected outputs are computed here from the operations, never by running a program.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from squelch.envs.sandbox import Question, Test
from squelch.envs.wording import Rng, choose
from squelch.kit.records.splits import task_key_of

Difficulty = Literal["easy", "medium", "hard"]
DIFFICULTIES: tuple[Difficulty, ...] = ("easy", "medium", "hard")
NUM_TESTS = 6
NUM_PUBLIC = 2
FUNCTION = "f"
LARGEST = 30
"""Inputs are integers of at most this size."""


@dataclass(frozen=True)
class Problem:
    """One task. `tests`: all tests; the text shows the first `num_public`. `solution` passes all tests."""

    text: str
    tests: tuple[Test, ...]
    function: str | None
    """The function that is called; None for a program that reads standard input."""
    source: str
    key: str
    prelude: str = ""
    solution: str | None = None
    worked: str = ""
    """The solution in words, for demonstrations."""
    plan: Plan | None = None
    num_public: int = 0


@dataclass(frozen=True)
class Operation:
    """One operation. `words` and `code` contain `{n}` for its number; `code` contains `{x}` for its operand."""

    words: str
    code: str
    apply: Callable[[int, int], int]
    numbers: range


CHANGES = {
    "add": Operation("add {n}", "{x} + {n}", lambda x, n: x + n, range(1, 100)),
    "subtract": Operation("subtract {n}", "{x} - {n}", lambda x, n: x - n, range(1, 100)),
    "multiply": Operation("multiply by {n}", "{x} * {n}", lambda x, n: x * n, range(2, 100)),
    "rest": Operation("take the rest by {n}", "{x} % {n}", lambda x, n: x % n, range(2, 100)),
    "floor": Operation("raise to at least {n}", "max({x}, {n})", max, range(-40, 60)),
    "cap": Operation("cut to at most {n}", "min({x}, {n})", min, range(-40, 60)),
    "square": Operation("square and add {n}", "{x} ** 2 + {n}", lambda x, n: x * x + n, range(1, 100)),
    "distance": Operation("take the distance to {n}", "abs({x} - {n})", lambda x, n: abs(x - n), range(1, 100)),
}
TESTS_OF_A_NUMBER = {
    "above": Operation("above {n}", "{x} > {n}", lambda x, n: x > n, range(-15, 20)),
    "below": Operation("below {n}", "{x} < {n}", lambda x, n: x < n, range(-15, 20)),
    "divisible": Operation("divisible by {n}", "{x} % {n} == 0", lambda x, n: x % n == 0, range(2, 20)),
    "indivisible": Operation("not divisible by {n}", "{x} % {n}", lambda x, n: x % n != 0, range(2, 20)),
}
GATHERINGS: dict[str, tuple[str, str, Callable[[list[int]], Any]]] = {
    "sum": ("sum them", "sum({items})", sum),
    "largest": ("take the largest or 0", "max(({items}), default=0)", lambda items: max(items, default=0)),
    "smallest": ("take the smallest or 0", "min(({items}), default=0)", lambda items: min(items, default=0)),
    "list": ("list them", "[{items}]", list),
    "sorted": ("sort them", "sorted({items})", sorted),
}
SCALARS = ("sum", "largest", "smallest")


@dataclass(frozen=True)
class Step:
    """An operation with its number."""

    name: str
    number: int


@dataclass(frozen=True)
class Gathering:
    """Operations on a list: keep some, change each, combine them."""

    keep: Step
    change: Step
    how: str


Plan = tuple[Step, ...] | tuple[Gathering, ...]


def statement(plan: Plan, difficulty: Difficulty) -> str:
    """The problem's text without the shown tests."""
    return {
        "easy": f"write f ( x ) for an integer x : {words(plan)} .",
        "medium": f"write f ( a ) for a list of integers a : {words(plan)} .",
        "hard": f"read one line of integers and print two results : {words(plan)} .",
    }[difficulty]


def key_of(plan: Plan, difficulty: Difficulty) -> str:
    """Digest of the problem's content."""
    return task_key_of("DeepCoder", statement(plan, difficulty))


def draw_plan(rng: Rng, difficulty: Difficulty) -> Plan:
    """Random operations and numbers, without the same operation twice in succession."""
    if difficulty == "easy":
        first = _draw(rng, CHANGES)
        second = _draw(rng, {name: operation for name, operation in CHANGES.items() if name != first.name})
        return (first, second)
    hows = SCALARS if difficulty == "hard" else tuple(GATHERINGS)
    count = 2 if difficulty == "hard" else 1
    return tuple(Gathering(_draw(rng, TESTS_OF_A_NUMBER), _draw(rng, CHANGES), choose(rng, hows)) for _ in range(count))


def _draw(rng: Rng, operations: dict[str, Operation]) -> Step:
    name = choose(rng, list(operations))
    return Step(name, choose(rng, operations[name].numbers))


def problem(plan: Plan, difficulty: Difficulty) -> Problem:
    """Text, tests and solution of a plan."""
    key = key_of(plan, difficulty)
    tests = tuple(_test(plan, difficulty, random.Random(f"{key} {k}")) for k in range(NUM_TESTS))
    text = "\n".join([statement(plan, difficulty), *(_shown(test, difficulty) for test in tests[:NUM_PUBLIC])])
    function = None if difficulty == "hard" else FUNCTION
    solution = program(plan, difficulty)
    return Problem(text, tests, function, difficulty, key, "", solution, words(plan), plan, NUM_PUBLIC)


def words(plan: Plan) -> str:
    """The plan in the words of the problem."""
    return " , then ".join(_words_of(part) for part in plan)


def _words_of(part: Step | Gathering) -> str:
    if isinstance(part, Step):
        return CHANGES[part.name].words.format(n=part.number)
    keep = TESTS_OF_A_NUMBER[part.keep.name].words.format(n=part.keep.number)
    return f"keep numbers {keep} , {_words_of(part.change)} , {GATHERINGS[part.how][0]}"


def program(plan: Plan, difficulty: Difficulty) -> str:
    """A program that carries out the plan."""
    if difficulty == "hard":
        results = ", ".join(_code_of(part) for part in plan if isinstance(part, Gathering))
        return f"a = list(map(int, input().split()))\nprint({results})"
    expression = "x"
    for part in plan:
        expression = _code_of(part) if isinstance(part, Gathering) else _applied(part, expression)
    return f"def {FUNCTION}({'x' if difficulty == 'easy' else 'a'}): return {expression}"


def _code_of(part: Gathering) -> str:
    keep = TESTS_OF_A_NUMBER[part.keep.name].code.format(x="x", n=part.keep.number)
    return GATHERINGS[part.how][1].format(items=f"{_applied(part.change, 'x')} for x in a if {keep}")


def _applied(step: Step, inner: str) -> str:
    """The code of a step; its operand is put in brackets if it is more than a name or a call."""
    bare = inner.isalnum() or inner.startswith(("max(", "min(", "abs("))
    return CHANGES[step.name].code.format(x=inner if bare else f"({inner})", n=step.number)


def result(part: Step | Gathering, value: Any) -> Any:
    """The result of a part of a plan for a value."""
    if isinstance(part, Step):
        return CHANGES[part.name].apply(value, part.number)
    keep, change = TESTS_OF_A_NUMBER[part.keep.name], CHANGES[part.change.name]
    items = [change.apply(x, part.change.number) for x in value if keep.apply(x, part.keep.number)]
    return GATHERINGS[part.how][2](items)


def _test(plan: Plan, difficulty: Difficulty, rng: random.Random) -> Test:
    if difficulty == "easy":
        value = expected = rng.randint(-LARGEST, LARGEST)
        for part in plan:
            expected = result(part, expected)
        return Test(Question(arguments=(value,)), (expected,))
    values = [rng.randint(-LARGEST, LARGEST) for _ in range(rng.randint(1, 6))]
    if difficulty == "medium":
        return Test(Question(arguments=(values,)), (result(plan[0], values),))
    printed = " ".join(str(result(part, values)) for part in plan)
    return Test(Question(stdin=" ".join(map(str, values)) + "\n"), (printed,))


def _shown(test: Test, difficulty: Difficulty) -> str:
    if difficulty == "hard":
        return f"{test.question.stdin.strip()} gives {test.accepted[0]}"
    return f"f({test.question.arguments[0]}) = {test.accepted[0]}"


def near_miss(plan: Plan, rng: Rng) -> Plan:
    """The plan with one change: of a number, of an operation, or of how a list is combined."""
    at = int(rng.random() * len(plan))
    parts: Sequence[Any] = [_missed(part, rng) if index == at else part for index, part in enumerate(plan)]
    return tuple(parts)


def _missed(part: Step | Gathering, rng: Rng) -> Step | Gathering:
    if isinstance(part, Step):
        return _other(part, CHANGES, rng)
    where = rng.random()
    if where < 0.4:
        return Gathering(_other(part.keep, TESTS_OF_A_NUMBER, rng), part.change, part.how)
    if where < 0.8:
        return Gathering(part.keep, _other(part.change, CHANGES, rng), part.how)
    return Gathering(part.keep, part.change, choose(rng, [how for how in SCALARS if how != part.how]))


def _other(step: Step, operations: dict[str, Operation], rng: Rng) -> Step:
    """The same operation with another number, or another one, with the same number if it can; never the step itself."""
    numbers = [number for number in operations[step.name].numbers if number != step.number]
    if numbers and rng.random() < 0.6:
        close = [number for number in numbers if abs(number - step.number) <= 3]
        return Step(step.name, choose(rng, close or numbers))
    others = {name: operation for name, operation in operations.items() if name != step.name}
    name = choose(rng, list(others))
    return Step(name, step.number) if step.number in others[name].numbers else _draw(rng, others)
