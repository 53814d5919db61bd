"""Word problems with worked solutions, generated from a seed. MetaMathQA plays them if no data set is configured.

Invariants: a problem is a function of the seed of its `Draw` and the limits; its numbers are small (`largest`), its
answer follows from its steps, and every step is an equation that holds. Problems are distinguished by their questions,
not by their answers. A new schema is one function and its entry in `SCHEMAS`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from squelch.envs.wording import choose

NAMES = (
    *("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gina", "Hugo", "Ida", "Jon", "Kim", "Leo"),
    *("Mia", "Ned", "Olga", "Pia", "Quinn", "Ron", "Sara", "Tom", "Uma", "Vera", "Will", "Zoe"),
    *("Abe", "Bea", "Carl", "Dora", "Emil", "Fay", "Gus", "Hana", "Ivan", "Jade", "Kai", "Lena"),
    *("Max", "Nora", "Otto", "Paul", "Rita", "Sam", "Tess", "Ulf", "Vic", "Wanda", "Yara", "Zack"),
)
THINGS = (
    *("apples", "pens", "books", "eggs", "cards", "stamps", "shells", "coins", "cups", "plums"),
    *("nuts", "balls", "beads", "hats", "keys", "pears", "rolls", "bells", "kites", "rings"),
    *("cakes", "lamps", "maps", "seeds", "socks", "toys", "boats", "masks", "mugs", "leaves"),
    *("plates", "ropes", "stones", "tiles", "nails", "bowls", "brooms", "candles", "drums", "figs"),
)
PLACES = ("shop", "farm", "school", "park", "club", "camp", "team", "choir")


@dataclass(frozen=True)
class Problem:
    """One problem. `steps`: equations that lead to the answer, such as `3*4=12`."""

    schema: str
    question: str
    steps: tuple[str, ...]

    @property
    def answer(self) -> str:
        """The right side of the last equation."""
        return self.steps[-1].rpartition("=")[2]


class Draw:
    """The random choices of one problem."""

    def __init__(self, seed: str, largest: int) -> None:
        self._rng = random.Random(seed)
        self.largest = largest
        self.name, self.other = choose(self._rng, NAMES), choose(self._rng, NAMES)
        self.thing = choose(self._rng, THINGS)
        self.place = choose(self._rng, PLACES)

    def number(self, low: int = 2, high: int | None = None) -> int:
        """An integer in [low, high]; `high` is by default the largest allowed number."""
        top = max(low, self.largest if high is None else min(high, self.largest))
        return low + int(self._rng.random() * (top - low + 1))

    def schema(self) -> Callable[[Draw], Problem]:
        """One of the schemas."""
        return choose(self._rng, SCHEMAS)


def generate(seed: str, largest: int) -> Problem:
    """The problem of `seed`, with operands up to `largest`."""
    draw = Draw(seed, largest)
    return draw.schema()(draw)


def addition(d: Draw) -> Problem:
    """A sum of two numbers."""
    a, b = d.number(), d.number()
    question = f"{d.name} has {a} {d.thing} and gets {b} more. How many {d.thing} does {d.name} have now?"
    return Problem("addition", question, (f"{a}+{b}={a + b}",))


def subtraction(d: Draw) -> Problem:
    """A difference of two numbers."""
    b, rest = d.number(), d.number()
    a = b + rest
    question = f"{d.name} had {a} {d.thing} and gave {b} away. How many {d.thing} are left?"
    return Problem("subtraction", question, (f"{a}-{b}={rest}",))


def product(d: Draw) -> Problem:
    """A product of two numbers."""
    a, b = d.number(high=9), d.number()
    question = f"{d.name} fills {a} boxes with {b} {d.thing} each. How many {d.thing} is that?"
    return Problem("product", question, (f"{a}*{b}={a * b}",))


def sharing(d: Draw) -> Problem:
    """A division without remainder."""
    a, each = d.number(high=9), d.number()
    total = a * each
    question = f"{a} friends share {total} {d.thing} equally. How many {d.thing} does each get?"
    return Problem("sharing", question, (f"{total}/{a}={each}",))


def shopping(d: Draw) -> Problem:
    """The money left after a purchase."""
    a, price, paid = d.number(high=6), d.number(high=9), d.number()
    money = a * price + paid
    question = f"{d.name} has {money} dollars and buys {a} {d.thing} at {price} dollars each. How much money is left?"
    return Problem("shopping", question, (f"{a}*{price}={a * price}", f"{money}-{a * price}={paid}"))


def two_buyers(d: Draw) -> Problem:
    """A sum with a number that is given as a difference."""
    a, more = d.number(), d.number(high=9)
    b = a + more
    question = (
        f"{d.name} picked {a} {d.thing}. At the {d.place}, {_other(d)} picked {more} more than that. "
        "How many did both pick together?"
    )
    return Problem("two_buyers", question, (f"{a}+{more}={b}", f"{a}+{b}={a + b}"))


def times_as_many(d: Draw) -> Problem:
    """A sum with a number that is given as a multiple."""
    a, factor = d.number(), d.number(high=5)
    b = a * factor
    question = f"{d.name} owns {a} {d.thing}. {_other(d)} owns {factor} times as many. How many do they own together?"
    return Problem("times_as_many", question, (f"{a}*{factor}={b}", f"{a}+{b}={a + b}"))


def speed(d: Draw) -> Problem:
    """A speed from distance and time."""
    hours, pace = d.number(high=9), d.number()
    question = (
        f"{d.name} rides {hours * pace} miles from the {d.place} in {hours} hours. How many miles per hour is that?"
    )
    return Problem("speed", question, (f"{hours * pace}/{hours}={pace}",))


def rectangle(d: Draw) -> Problem:
    """The area of a rectangle."""
    a, b = d.number(), d.number(high=9)
    question = f"The {d.place} of {d.name} has a garden {a} m long and {b} m wide. How many square metres is it?"
    return Problem("rectangle", question, (f"{a}*{b}={a * b}",))


def perimeter(d: Draw) -> Problem:
    """The perimeter of a rectangle."""
    a, b = d.number(), d.number()
    question = f"{d.name} walks once around a field {a} m long and {b} m wide. How many metres does {d.name} walk?"
    return Problem("perimeter", question, (f"{a}+{b}={a + b}", f"2*{a + b}={2 * (a + b)}"))


def mean(d: Draw) -> Problem:
    """The mean of three numbers."""
    middle, gap, other = d.number(low=3), d.number(low=1, high=2), d.number(low=1, high=2)
    a, b, c = middle - gap, middle + gap + other, middle - other
    total = a + b + c
    question = f"On three days {d.name} counts {a}, {b} and {c} {d.thing}. What is the mean?"
    return Problem("mean", question, (f"{a}+{b}+{c}={total}", f"{total}/3={middle}"))


def fraction(d: Draw) -> Problem:
    """A share as a fraction in lowest terms."""
    part, rest = d.number(high=9), d.number(high=9)
    share = Fraction(part, part + rest)
    question = (
        f"{d.name} has {part} red and {rest} blue {d.thing}. What fraction of the {d.thing} is red? "
        "Give the simplest form."
    )
    return Problem("fraction", question, (f"{part}+{rest}={part + rest}", f"{part}/{part + rest}={share}"))


def percent(d: Draw) -> Problem:
    """A share in percent."""
    whole = 10 * d.number(high=9)
    tenths = d.number(low=1, high=9)
    part = whole * tenths // 10
    question = f"Of the {whole} {d.thing} of {d.name}, {part} were sold at the {d.place}. What percent is that?"
    return Problem("percent", question, (f"{part}/{whole}={tenths / 10:g}", f"100*{tenths / 10:g}={10 * tenths}"))


def price_in_cents(d: Draw) -> Problem:
    """A price in dollars from a unit price in cents."""
    count, cents = d.number(), 5 * d.number(low=1, high=15)
    total = count * cents
    question = f"One of the {d.thing} costs {cents} cents. How many dollars do {count} {d.thing} cost {d.name}?"
    return Problem("price_in_cents", question, (f"{count}*{cents}={total}", f"{total}/100={total / 100:.2f}"))


def unknown(d: Draw) -> Problem:
    """A linear equation with one unknown."""
    x, factor, offset = d.number(), d.number(high=5), d.number(high=9)
    right = factor * x + offset
    question = (
        f"{d.name} thinks of a number, multiplies it by {factor} and adds {offset}. The result is {right}. "
        f"What number was it?"
    )
    return Problem("unknown", question, (f"{right}-{offset}={factor * x}", f"{factor * x}/{factor}={x}"))


def ages(d: Draw) -> Problem:
    """An age some years later."""
    now, years = d.number(low=5), d.number(high=9)
    later = now + years
    question = (
        f"{d.name} is {now} years old. How old will {d.name} be in {years} years, when {_other(d)} is {later + 1}?"
    )
    return Problem("ages", question, (f"{now}+{years}={later}",))


def days(d: Draw) -> Problem:
    """A total over several weeks."""
    each, weeks = d.number(high=9), d.number(high=5)
    question = f"{d.name} makes {each} {d.thing} a day. How many {d.thing} does {d.name} make in {weeks} weeks?"
    return Problem("days", question, (f"7*{weeks}={7 * weeks}", f"{7 * weeks}*{each}={7 * weeks * each}"))


def remainder(d: Draw) -> Problem:
    """The remainder of a division."""
    size, full = d.number(low=3, high=9), d.number(high=9)
    left = d.number(low=1, high=size - 1)
    total = size * full + left
    question = (
        f"{d.name} packs {total} {d.thing} into bags of {size} until no bag can be filled. How many are left over?"
    )
    return Problem("remainder", question, (f"{size}*{full}={size * full}", f"{total}-{size * full}={left}"))


def _other(d: Draw) -> str:
    """A second name that differs from the first."""
    return d.other if d.other != d.name else NAMES[(NAMES.index(d.name) + 1) % len(NAMES)]


SCHEMAS: tuple[Callable[[Draw], Problem], ...] = (
    addition,
    subtraction,
    product,
    sharing,
    shopping,
    two_buyers,
    times_as_many,
    speed,
    rectangle,
    perimeter,
    mean,
    fraction,
    percent,
    price_in_cents,
    unknown,
    ages,
    days,
    remainder,
)
