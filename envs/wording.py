"""Wording of solver demonstrations, shared by all environments.

Demonstrations warm up a tiny policy and are deliberately imperfect: some describe the state in varied wording, some are
generic text that fits any state, some coordinates are wrong and some plans are random. So training can both increase
and decrease input dependence and reward variance. The vocabulary is closed: lower-case words, one digit per coordinate,
one space between words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from pydantic import Field

from envs.settings import Settings

Cell = tuple[int, int]
T = TypeVar("T")

JOINS = ("", "and", ",")
PLAN_JOINS = (" ", " then ")
SWAP_RATE = 0.3  # probability that the facts are stated in another order
SHORT_PLAN_RATE = 0.1  # probability that a plan stops after one action


class Rng(Protocol):
    """A generator of uniform numbers in [0, 1), such as `random.Random` and `numpy.random.Generator`."""

    def random(self) -> float:
        """The next number in [0, 1)."""
        ...


class DemonstrationQuality(Settings):
    """Quality of demonstrations. Each rate is a probability per turn."""

    grounded: float = Field(0.65, ge=0, le=1)
    """The reasoning names the state's coordinates; otherwise it is generic."""
    wrong_coordinates: float = Field(0.07, ge=0, le=1)
    """One of the coordinates of a grounded reasoning is replaced by a random cell; the plan is left as it is."""
    random_plan: float = Field(0.15, ge=0, le=1)
    """Random actions replace the solver's in a grounded turn."""
    generic_random_plan: float = Field(0.7, ge=0, le=1)
    """Random actions replace the solver's in a generic turn."""
    max_actions: int = Field(2, ge=1)
    """Actions in one turn."""


DEFAULT_QUALITY = DemonstrationQuality()


@dataclass(frozen=True)
class Wording:
    """The words of one environment.

    `facts` maps a fact's name to templates with one `{}` for its coordinates (`row column`, counted from 0); `plans`
    are templates with one `{}` for the actions; a generic reasoning takes one fragment of each tuple in `generic`.
    """

    facts: dict[str, tuple[str, ...]]
    plans: tuple[str, ...]
    generic: tuple[tuple[str, ...], ...]

    def fragments(self) -> list[str]:
        """All text fragments of reasonings, without coordinates and action words."""
        templates = [t for group in (*self.facts.values(), self.plans) for t in group]
        generic = [fragment for part in self.generic for fragment in part]
        return [t.replace("{}", " ") for t in templates] + generic + list(JOINS) + list(PLAN_JOINS)


def choose(rng: Rng, items: Sequence[T]) -> T:
    """One of `items`, uniformly; needs only `rng.random`, whose stream is the same in every Python version."""
    return items[int(rng.random() * len(items))]


def draw_distinct(rng: Rng, count: int, size: int) -> list[int]:
    """`count` distinct integers below `size`, uniformly (partial Fisher-Yates)."""
    pool = list(range(size))
    for i in range(count):
        j = i + int(rng.random() * (size - i))
        pool[i], pool[j] = pool[j], pool[i]
    return pool[:count]


def grounded_reasoning(rng: Rng, wording: Wording, facts: dict[str, Cell], actions: Sequence[str]) -> str:
    """The facts with their coordinates, in varied wording and order, then the plan."""
    parts = [choose(rng, wording.facts[name]).format(f"{row} {column}") for name, (row, column) in facts.items()]
    if rng.random() < SWAP_RATE:
        parts.reverse()
    plan = choose(rng, PLAN_JOINS).join(action.lower() for action in actions)
    text = f" {choose(rng, JOINS)} ".join(parts) + " " + choose(rng, wording.plans).format(plan)
    return " ".join(text.split())


def generic_reasoning(rng: Rng, wording: Wording) -> str:
    """A reasoning that fits any state."""
    return " ".join(choose(rng, part) for part in wording.generic)


def misplace(rng: Rng, facts: dict[str, Cell], side: int) -> dict[str, Cell]:
    """`facts` with one coordinate pair replaced by a random cell of a board of `side` x `side`."""
    name = choose(rng, list(facts))
    return {**facts, name: (int(rng.random() * side), int(rng.random() * side))}
