"""The judge of Countdown: are the sums that a reasoning states true, and are its numbers the given ones?

    Sum      "12 / 6 = 2", "12 / 6 makes 2", "3 times 4 is not 7", "2 * 3 + 1 = 6 + 1 = 7": both sides have one value
    Uses     the numbers of a sum are given ones, or results of sums before it
    Given    "the numbers are 6, 9 and 12", "from 6 9 12": they are given ones, or results of sums before them
    Target   "the target is 7", "i want 7", "i need to make 7", and "that is the target" after a sum

After a stated target, another value that is wanted is a step on the way ("to reach 7 from 9, I need to make 2"), and no
claim.

All other text is ignored, and so are sums of decimals or of negative numbers, and quotients with a remainder. A value
that is reached in words ("divide 12 by 6 to get 2") is no claim, but later sums may use it. The text is read once, from
left to right; expressions are read by the grammar of `envs.countdown.expressions` and never evaluated as code.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from squelch.envs.countdown.expressions import numbers_in, parse_expression, read_expression, value_of
from squelch.envs.wording import Wording
from squelch.kit.records.pictures import Picture

_SPOKEN = {"plus": "+", "minus": "-", "times": "*", "multiplied by": "*", "divided by": "/"}
_SPOKEN_SIGN = re.compile(rf"(?<=[\d)]) ?\b(?:{'|'.join(_SPOKEN)}) (?=[\d(])")
_CROSS = re.compile(r"(?<=[\d)]) ?[x×] ?(?=[\d(])")
_EQUALS = r"(?: ?(?:!=|==?|≠) ?| (?:is not equal to|is equal to|is not|is|equals|makes|gives) )"
_THOUSANDS = re.compile(rf"({_EQUALS}\d{{1,3}}(?:,\d{{3}}){{1,3}})(?!,? ?(?:and )?\d)")
"""A value with commas between its thousands, as in "= 1,440"; "25,100" elsewhere is a list."""
_TERM = r"\({0,8}\d{1,12}\){0,8}"
_START = r"(?<![\d.^(+*/-])(?<![-+*/^] )(?<!\bminus )(?<!\bplus )(?<!\btimes )(?<!\bdivided by )(?<!\bmultiplied by )"
"""Not within an expression whose beginning is not read: "x + 6 + 9", "2^3 + 1", "2.5 * 2 + 2"."""
_SIDE = rf"(?:{_START}{_TERM}(?: ?[-+*/] ?{_TERM}){{0,12}}(?:\.\d{{1,6}})?|-\d{{1,12}}(?:\.\d{{1,6}})?)"
_MORE = r"(?:more|less|fewer|greater|larger|bigger|higher|smaller|lower|away|off|too|short|over|under|above|below)\b"
"""After a number: it is a difference, and no value of a sum."""
_REST = (
    rf"(?:\(?(?:with )?(?:an? )?(?:remainder|rem\b|r ?\d)|(?:and|with) \d{{1,12}} (?:left|remaining|over)\b"
    rf"|(?:and )?\d{{1,12}} ?/ ?\d{{1,12}}(?!\d| ?[-+*/=]|{_EQUALS}))"
)
"""After a whole number: it is only a part of a quotient, as in "1 remainder 3" and "1 1/3"."""
_NOT = r"(?<!\bnot )(?<!n't )(?<!\bcannot )"
_VALUES = "".join(rf"(?<!\b{word})" for word in ("target", "goal", "result", "total", "sum", "it", "that", "this"))
_MARKS = re.compile(rf"(?m)^[ \t]*[-*•] |(?<![\d)])\*\*|\*\*(?![\d(])|(?<=[a-z]{{2}}){_VALUES} [-–](?= [\d(])")
"""Points of a list, bold text, and a dash after a word that stands for no value, which are no signs of arithmetic."""
_LIST = r"\d{1,6}(?!\d)(?:(?:,? and|,)? \d{1,6}(?!\d)){1,9}"
_MAKE = r"(?:make|reach|get|hit)"
_WANTED = (
    rf"(?:(?:want|need|have|has|must|try|trying|aim|goal is|how|should|can|could)(?: to)? {_MAKE}"
    rf"|(?:(?<=^)|(?<=[.;!?] ))to {_MAKE}|{_NOT}(?<!\bto )(?<!\bi )(?<!\bwe )(?<!\byou )(?<!\d )(?:make|reach|hit))"
)
"""Words before a value that is to be reached. "To get 2" after something else says what was reached."""
_WORDS = re.compile(
    rf"(?P<sum>{_SIDE}(?:{_EQUALS}{_SIDE})+)(?!\d|\.\d| {_MORE}| {_REST})"
    rf"|(?P<given>\b(?:numbers?(?: are)?:?|from|with|have|using|use) (?P<list>{_LIST})(?! ?[-+*/]))"
    rf"|(?P<target>\b(?:(?P<named>target)(?: is| of| =|:)?|want|{_WANTED}) (?P<value>\d{{1,12}})(?! ?[-+*/(\d]))"
    rf"|{_NOT}\b(?:{_MAKE}|makes|gets|gives|giving|leaves|leaving) (?P<made>\d{{1,12}})(?! ?[-+*/(\d])"
    r"|(?P<reached>\b(?:that|this|which|it) is (?P<denied>not )?the target\b)"
)


@dataclass(frozen=True)
class Puzzle:
    """The facts: the numbers and the target of a prompt."""

    numbers: Counter[int]
    target: int


@dataclass(frozen=True)
class Sum:
    """Two values that are said to be equal; None: the side divides by zero. `tolerance`: of a rounded side."""

    left: Fraction | None
    right: Fraction | None
    tolerance: Fraction
    denied: bool

    def holds(self, puzzle: Puzzle) -> bool:
        """Whether it is true, of any puzzle."""
        if self.left is None or self.right is None:
            return False
        return (abs(self.left - self.right) <= self.tolerance) != self.denied


@dataclass(frozen=True)
class Uses:
    """The numbers of an expression, and the results of the sums before it."""

    numbers: tuple[int, ...]
    results: Counter[int]

    def holds(self, puzzle: Puzzle) -> bool:
        """Whether each number is a given one or a result, as often as it is there."""
        return Counter(self.numbers) <= puzzle.numbers + self.results


@dataclass(frozen=True)
class Given:
    """Numbers that are said to be given, and the results of the sums before them."""

    numbers: tuple[int, ...]
    results: Counter[int]

    def holds(self, puzzle: Puzzle) -> bool:
        """Whether each number is a given one or a result, as often as it is there."""
        return Counter(self.numbers) <= puzzle.numbers + self.results


@dataclass(frozen=True)
class Target:
    """A value that is said to be the target, or not to be it."""

    value: Fraction
    denied: bool = False

    def holds(self, puzzle: Puzzle) -> bool:
        """Whether it is the target."""
        return (self.value == puzzle.target) != self.denied


Claim = Sum | Uses | Given | Target


class CountdownJudge:
    """The judge; `wordings` say how a puzzle is shown."""

    def __init__(self, wordings: Iterable[Wording]) -> None:
        self._shown = [_pattern(wording) for wording in wordings]

    def facts(self, prompt: str, pictures: Sequence[Picture] = ()) -> Puzzle | None:
        """The last puzzle of a prompt's text; None if it shows none. No puzzle is shown in a picture."""
        found = [match for shown in self._shown for match in shown.finditer(prompt)]
        if not found:
            return None
        last = max(found, key=lambda match: match.start())
        return Puzzle(Counter(_numbers(last["numbers"])), int(last["target"]))

    def claims(self, reasoning: str) -> list[Claim]:
        """The claims of a reasoning, in order."""
        text = _MARKS.sub("", reasoning.lower())
        text = _CROSS.sub(" * ", " ".join(text.split()).replace("−", "-").replace("÷", "/"))
        text = _THOUSANDS.sub(lambda match: match[1].replace(",", ""), text)
        text = _SPOKEN_SIGN.sub(lambda match: f" {_SPOKEN[match[0].strip()]} ", text)
        text = re.sub(r"\( ", "(", re.sub(r" \)", ")", text))
        found: list[Claim] = []
        results: list[Fraction] = []
        stated: set[Fraction] = set()  # the values that were claimed to be the target
        for match in _WORDS.finditer(text):
            if match["sum"]:
                found += _sums(match["sum"], results)
            elif match["given"]:
                found.append(Given(tuple(_numbers(match["list"])), _whole(results)))
            elif match["target"]:
                value = Fraction(match["value"])
                if match["named"] or not stated or value in stated:
                    found.append(Target(value))
                    stated.add(value)
            elif match["made"]:
                results.append(Fraction(match["made"]))
            elif results:  # without a result before it, "that" is nothing
                found.append(Target(results[-1], match["denied"] is not None))
        return found

    def holds(self, claim: Claim, facts: Puzzle) -> bool:
        """Whether the claim is true of the puzzle."""
        return claim.holds(facts)


def _sums(text: str, results: list[Fraction]) -> list[Claim]:
    """The claims of one chain of equations; its last value joins `results`."""
    pieces = re.split(rf"({_EQUALS})", text)
    sides, signs = [_side(piece) for piece in pieces[::2]], pieces[1::2]
    earlier = _whole(results)
    found: list[Claim] = []
    for (value, numbers, tolerance), (other, more, other_tolerance), sign in zip(sides, sides[1:], signs, strict=False):
        if len(numbers) < 2 and len(more) < 2:
            continue  # "7 is 7" states no sum
        denied = "not" in sign or "!" in sign or "≠" in sign
        found.append(Sum(value, other, max(tolerance, other_tolerance), denied))
    if found:
        found += [Uses(tuple(numbers), earlier) for _, numbers, _ in sides[:1] if len(numbers) > 1]
        if (last := sides[-1][0]) is not None:
            results.append(last)
    return found


def _whole(results: Iterable[Fraction]) -> Counter[int]:
    return Counter(int(value) for value in results if value.denominator == 1)


def _side(text: str) -> tuple[Fraction | None, list[int], Fraction]:
    """(value, numbers, tolerance) of one side of an equation."""
    if re.fullmatch(r"-?\d+\.\d+|-\d+", text):
        places = len(text.partition(".")[2])
        return Fraction(text), [], Fraction(1, 2 * 10**places) if places else Fraction(0)
    postfix = parse_expression(read_expression(text) or "")
    if postfix is None:
        return None, [], Fraction(0)
    value = value_of(postfix)
    return (None if value is None else Fraction(value)), numbers_in(postfix), Fraction(0)


def _pattern(wording: Wording) -> re.Pattern[str]:
    """Finds the puzzles that a wording shows."""
    listed = rf"\d{{1,6}}(?:{re.escape(wording.shown['join'])}\d{{1,6}})*"
    text = re.escape(wording.shown["puzzle"])
    return re.compile(
        text.replace(r"\{numbers\}", f"(?P<numbers>{listed})").replace(r"\{target\}", r"(?P<target>\d{1,6})")
    )


def _numbers(text: str) -> Sequence[int]:
    return [int(number) for number in re.findall(r"\d+", text)]
