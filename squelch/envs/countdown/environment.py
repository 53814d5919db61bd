"""Countdown: reach a target with arithmetic on a few numbers (paper, appendix B.1). One turn, one expression.

Invariants:

- Every generated task has a solution that uses every number once and whose intermediate results are positive integers
  of at most `MAX_VALUE`; so it can be solved under both rules. The target is none of the numbers.
- An expression is parsed by a grammar (`envs.countdown.expressions`), never evaluated as code. Its value is an exact
  rational. It is computed only after its numbers were checked to be the task's own, so its numerator and denominator
  are bounded by the product of the task's numbers.

The paper's own example, 6 x (7 - 5 + 1) + 6 from 1, 5, 6, 7, uses the 6 twice and so breaks its rule; here it gets 0.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal

from gymnasium.spaces import Text
from pydantic import Field

from squelch.envs.base import TwinnedEnv
from squelch.envs.contract import ClosedVocabulary, Demonstrator, Judged
from squelch.envs.countdown.claims import CountdownJudge
from squelch.envs.countdown.expressions import (
    MAX_LENGTH,
    normal_form,
    parse_expression,
    read_expression,
    uses_numbers,
    value_of,
)
from squelch.envs.countdown.published import MAX_NUMBERS, MIN_NUMBERS, MOST, published, published_puzzle
from squelch.envs.text import PRINTABLE
from squelch.envs.wording import (
    DEFAULT_QUALITY,
    DemonstrationQuality,
    Rng,
    Wording,
    choose,
    draw_distinct,
    generic_reasoning,
    listed,
    shuffled,
    wordings_beside,
)
from squelch.kit.base.settings import Settings
from squelch.kit.base.user_files import NAMES_FILES
from squelch.kit.records.splits import MAX_DRAWS, Split, no_task, split_of, task_key_of

RIGHT_REWARD, WRONG_REWARD = 1.0, 0.1  # appendix B.1
MAX_VALUE = 999
"""Largest target, and largest intermediate result in a generated task's solution."""
NEAR = 100
"""Largest number, and largest target, of the variations of a published puzzle."""


class CountdownOptions(Settings):
    """The source of puzzles, number and size of the given numbers, and the rule for their use."""

    data: Annotated[str | None, NAMES_FILES] = None
    """Published puzzles: a Parquet or JSON file with the columns `nums` and `target`, a folder of them, or the id of a
    data set on the Hugging Face hub (`Jiayi-Pan/Countdown-Tasks-3to4`, downloaded). Unset: generated puzzles, offline;
    the limits of numbers and target below are theirs alone."""
    min_numbers: int = Field(3, ge=3, le=6)
    """Fewest given numbers of a task."""
    max_numbers: int = Field(3, ge=3, le=6)
    """Most given numbers of a task; their count is uniform between the two."""
    max_number: int = Field(12, ge=4, le=100)
    """Numbers are uniform from 1 to this."""
    max_target: int = Field(100, ge=10, le=MAX_VALUE)
    """Largest target."""
    rule: Literal["at_most_once", "exactly_once"] = "at_most_once"
    """How often each number is used: `at_most_once` as in the paper, or `exactly_once` as in the authors' code."""

    def _faults(self) -> Iterator[str]:
        if self.min_numbers > self.max_numbers:
            yield f"min_numbers={self.min_numbers} is above max_numbers={self.max_numbers}"


@dataclass(frozen=True)
class Puzzle:
    """One task; `numbers` ascend."""

    numbers: tuple[int, ...]
    target: int
    key: str


@dataclass(frozen=True)
class Step:
    """One operation of a solution; `result` is positive."""

    left: int
    sign: str
    right: int
    result: int


WORDS = wordings_beside(__file__)


def puzzle_text(numbers: Sequence[int], target: int, wording: Wording = WORDS["tiny"]) -> str:
    """`numbers 3 5 12`, and on a line of its own `target 24`, or another wording's text."""
    shown = wording.shown["join"].join(map(str, numbers))
    return wording.shown["puzzle"].format(numbers=shown, target=target)


# --- tasks and their solutions ---


def operations(a: int, b: int) -> list[Step]:
    """All operations on two positive numbers whose result is a positive integer up to `MAX_VALUE`, in a fixed order."""
    large, small = (a, b) if a >= b else (b, a)
    steps = []
    if large + small <= MAX_VALUE:
        steps.append(Step(large, "+", small, large + small))
    if large > small:
        steps.append(Step(large, "-", small, large - small))
    if large * small <= MAX_VALUE:
        steps.append(Step(large, "*", small, large * small))
    if small > 1 and large % small == 0:
        steps.append(Step(large, "/", small, large // small))
    return steps


def draw_puzzle(rng: Rng, options: CountdownOptions) -> tuple[tuple[int, ...], int] | None:
    """(numbers, target) from random operations on random numbers until one is left; None if the result is no puzzle."""
    count = options.min_numbers + int(rng.random() * (options.max_numbers - options.min_numbers + 1))
    numbers = [1 + int(rng.random() * options.max_number) for _ in range(count)]
    values = list(numbers)
    while len(values) > 1:
        a = values.pop(int(rng.random() * len(values)))
        b = values.pop(int(rng.random() * len(values)))
        choices = operations(a, b)
        if not choices:
            return None
        values.append(choose(rng, choices).result)
    if values[0] > options.max_target or values[0] in numbers:
        return None
    return tuple(sorted(numbers)), values[0]


@lru_cache(maxsize=4096)
def generate(seed: int, split: Split, options: CountdownOptions) -> Puzzle:
    """The puzzle of `seed`: puzzles are drawn until one belongs to `split`."""
    rng = random.Random(f"Countdown {seed}")
    for _ in range(MAX_DRAWS):
        drawn = draw_puzzle(rng, options)
        if drawn is None:
            continue
        key = task_key_of("Countdown", puzzle_text(*drawn))
        if split_of(key) == split:
            return Puzzle(*drawn, key)
    raise no_task("Countdown", options)


def task(seed: int, split: Split, options: CountdownOptions) -> Puzzle:
    """The puzzle of `seed`: generated, or a published one."""
    if options.data is None:
        return generate(seed, split, options)
    numbers, target = published_puzzle(published(options.data, split), seed)
    return Puzzle(numbers, target, task_key_of("Countdown", puzzle_text(numbers, target)))


@lru_cache(maxsize=65536)
def solve(numbers: tuple[int, ...], target: int, rule: str) -> tuple[Step, ...] | None:
    """Operations that lead from the numbers to the target through positive integers; None if there are none.

    The search is depth first over the operations on pairs, and remembers states without a solution. Under
    `at_most_once` a result that equals the target ends the search even if numbers are left.
    """
    return _search(numbers, target, rule == "exactly_once", set())


def _search(
    values: tuple[int, ...], target: int, use_all: bool, failed: set[tuple[int, ...]]
) -> tuple[Step, ...] | None:
    if len(values) == 1 or values in failed:
        return None
    for i in range(len(values)):
        for j in range(i):
            rest = values[:j] + values[j + 1 : i] + values[i + 1 :]
            for step in operations(values[i], values[j]):
                if step.result == target and not (use_all and rest):
                    return (step,)
                found = _search(tuple(sorted((*rest, step.result))), target, use_all, failed)
                if found is not None:
                    return (step, *found)
    failed.add(values)
    return None


@lru_cache(maxsize=4096)
def reachable(numbers: tuple[int, ...]) -> frozenset[int]:
    """The results of all operations on the numbers that use each of them once; `numbers` ascend."""
    if len(numbers) == 1:
        return frozenset(numbers)
    places, found = range(len(numbers)), set[int]()
    for chosen in range(1, 2 ** len(numbers) - 1, 2):  # of two parts, the one with the first number
        part, rest = (tuple(numbers[i] for i in places if (chosen >> i & 1) == own) for own in (1, 0))
        pairs = ((a, b) for a in reachable(part) for b in reachable(rest))
        found.update(step.result for a, b in pairs for step in operations(a, b))
    return frozenset(found)


def expression(steps: Sequence[Step]) -> str:
    """One expression for the last step's result, with earlier results in brackets and spaces between tokens."""
    made: dict[int, list[str]] = {}
    text = ""
    for step in steps:
        left, right = (made[v].pop() if made.get(v) else str(v) for v in (step.left, step.right))
        text = f"{left} {step.sign} {right}"
        made.setdefault(step.result, []).append(f"( {text} )")
    return text


# --- the environment ---


class Countdown(TwinnedEnv, Demonstrator, ClosedVocabulary, Judged):
    """Make the target from the numbers: 1 if the expression is right, 0.1 if only its numbers are, else 0."""

    name = "Countdown"
    Options = CountdownOptions
    options: CountdownOptions
    max_turns = 1
    max_action_length = MAX_LENGTH
    wordings = WORDS

    def __init__(self, split: Split = "train", render_mode: str | None = None, **options: Any) -> None:
        super().__init__(split, render_mode, **options)
        if self.options.data is not None:
            published(self.options.data, split)  # raises errors in the data before actors start

    def terms(self) -> dict[str, str]:
        """How often each number is used."""
        return {"used": "at most once" if self.options.rule == "at_most_once" else "exactly once"}

    def read_action(self, text: str) -> str | None:
        """The expression with spaces between tokens; None if the text is no expression."""
        return read_expression(text)

    def same_action(self, one: str, other: str) -> bool:
        """As `Environment.same_action`: the same calculation, up to the order of terms and factors and up to brackets
        that change nothing: `2 + 3` is `( 3 + 2 )`, and `9 - ( 4 - 1 )` is `1 + 9 - 4`.

        The value alone does not decide: 4 * 3 and 6 + 6 are two ways to 12, and most puzzles have several. Nor does a
        rule that changes which operations are made: 2 * ( 3 + 4 ) is not 2 * 3 + 2 * 4, and 5 * 1 is not 5.
        """
        first, second = parse_expression(one), parse_expression(other)
        return first is not None and second is not None and normal_form(first) == normal_form(second)

    def observation(self) -> str:
        """The current state as text."""
        return puzzle_text(self._puzzle.numbers, self._puzzle.target, self.wording)

    @classmethod
    def judge(cls) -> CountdownJudge:
        """As `Judged.judge`."""
        return CountdownJudge(cls.wordings.values())

    def _observation_space(self) -> Text:
        return Text(len(puzzle_text([100] * 6, MAX_VALUE, self.wording)), charset=PRINTABLE)

    def task_key(self) -> str:
        """Digest of the task's content."""
        return self._puzzle.key

    def task_kind(self) -> str:
        """The count of numbers."""
        return f"{len(self._puzzle.numbers)} numbers"

    def solution(self) -> list[str] | None:
        """Actions to success from the current state; None if none is known."""
        steps = None if self._played else solve(self._puzzle.numbers, self._puzzle.target, self.options.rule)
        return None if steps is None else [expression(steps)]

    def demonstrate(self, rng: Rng, quality: DemonstrationQuality = DEFAULT_QUALITY) -> tuple[str, list[str]]:
        """A reasoning that names the numbers and calculates, with its answer; or a generic reasoning, more often with a
        random expression."""
        puzzle, grounded = self._puzzle, rng.random() < quality.grounded
        at_random = rng.random() < (quality.random_plan if grounded else quality.generic_random_plan)
        steps = None if at_random else solve(puzzle.numbers, puzzle.target, self.options.rule)
        steps = steps or random_steps(rng, puzzle.numbers)
        answer = [expression(steps)]
        if not grounded:
            return generic_reasoning(rng, self.wording), answer
        numbers = list(puzzle.numbers)
        if rng.random() < quality.wrong_coordinates:
            numbers[int(rng.random() * len(numbers))] = 1 + int(rng.random() * self.options.max_number)
        return self._reasoning(rng, numbers, steps), answer

    def _reasoning(self, rng: Rng, numbers: Sequence[int], steps: Sequence[Step]) -> str:
        """The puzzle with these numbers, and the steps; in some styles also whether they reach the target."""
        target, said = self._puzzle.target, self.wording.said
        fields = {"numbers": " ".join(map(str, numbers)), "listed": listed(numbers), "target": target}
        facts = choose(rng, said["facts"]).format(**fields)
        worked = [choose(rng, said["steps"]).format(**vars(step)) for step in steps]
        join = choose(rng, said["join"])
        ending = said.get("reached" if steps and steps[-1].result == target else "missed", ())
        return join.join([facts, *worked, *([choose(rng, ending).format(**fields)] if ending else [])])

    @classmethod
    def phrases(cls) -> list[str]:
        """As `ClosedVocabulary.phrases`."""
        words = [f" {fragment}" for fragment in cls.wordings["tiny"].fragments()]
        numbers = [f" {number}" for number in range(MAX_VALUE + 1)]
        rules = [cls(rule=rule) for rule in ("at_most_once", "exactly_once")]
        said = [env.rules() for env in rules]
        return [*(re.sub(" +", " ", word) for word in words), *numbers, "numbers 1\ntarget 1", *said, " + - * / ( )"]

    def step_rewards(self) -> tuple[float, ...]:
        """As `ClosedVocabulary.step_rewards`."""
        return (0.0, WRONG_REWARD, RIGHT_REWARD)

    def _load(self, seed: int) -> dict[str, Any]:
        return self._opened(task(seed, self.split, self.options))

    def _opened(self, puzzle: Puzzle) -> dict[str, Any]:
        self._puzzle = puzzle
        self._played = self._right = False
        return {"count": len(puzzle.numbers)}

    def content(self) -> str:
        """The puzzle in the style `tiny`."""
        return puzzle_text(self._puzzle.numbers, self._puzzle.target)

    def family(self, rng: Rng) -> Iterator[str]:
        """As `TwinnedEnv.family`: one number, or the target, is another. Targets are results of random operations, so
        that the puzzles of a family are not quite equally likely as tasks, and most variations of a published puzzle
        are in no file.

        Of equal numbers the first varies, and in place of the others the target: each family of a number is then drawn
        with probability 1/(count + 1) from all of its members, and the families of the target, whose members have the
        same numbers, are drawn alike anyway.
        """
        numbers, target = self._puzzle.numbers, self._puzzle.target
        at_target = len(numbers)
        parts = [at_target if one in numbers[:place] else place for place, one in enumerate(numbers)]
        part = choose(rng, [*parts, at_target])
        drawn = self.options.data is None
        largest = (self.options.max_number if part < at_target else self.options.max_target) if drawn else NEAR
        for value in shuffled(rng, range(1, largest + 1)):
            kept, wanted = (numbers, value) if part == at_target else (_with(numbers, part, value), target)
            if (kept, wanted) != (numbers, target) and self._is_task(kept, wanted):
                yield puzzle_text(kept, wanted)

    def _is_task(self, numbers: tuple[int, ...], target: int) -> bool:
        """Whether a puzzle within the options' limits has the properties of a drawn one."""
        return target not in numbers and target in reachable(numbers)

    def _load_content(self, content: str) -> dict[str, Any]:
        options, found = self.options, [int(number) for number in re.findall(r"[0-9]{1,9}", content)]
        numbers, target = tuple(sorted(found[:-1])), found[-1] if found else 0
        limits = options.min_numbers, options.max_numbers, options.max_number, options.max_target
        fewest, most, largest, highest = limits if options.data is None else (MIN_NUMBERS, MAX_NUMBERS, MOST, MOST)
        within = fewest <= len(numbers) <= most and target <= highest and all(1 <= one <= largest for one in numbers)
        if (
            not within
            or puzzle_text(numbers, target) != content
            or not (options.data or self._is_task(numbers, target))
        ):
            raise ValueError(f"{content!r} is no puzzle within the limits of {options}")
        return self._opened(Puzzle(numbers, target, task_key_of("Countdown", puzzle_text(numbers, target))))

    def _move(self, action: str) -> float:
        self._played = True
        postfix = parse_expression(action)
        if postfix is None or not uses_numbers(postfix, self._puzzle.numbers, self.options.rule):
            return 0.0
        self._right = value_of(postfix) == self._puzzle.target
        return RIGHT_REWARD if self._right else WRONG_REWARD

    def _terminated(self) -> bool:
        return self._played

    def _succeeded(self) -> bool:
        return self._right


def _with(numbers: tuple[int, ...], place: int, value: int) -> tuple[int, ...]:
    return tuple(sorted((*numbers[:place], value, *numbers[place + 1 :])))


def random_steps(rng: Rng, numbers: Sequence[int]) -> tuple[Step, ...]:
    """Random operations on the numbers in random order: well formed, but rarely right."""
    values = [numbers[i] for i in draw_distinct(rng, len(numbers), len(numbers))]
    steps = []
    while len(values) > 1:
        choices = operations(values[0], values[1])
        if not choices:
            break
        steps.append(choose(rng, choices))
        values[:2] = [steps[-1].result]
    return tuple(steps)
