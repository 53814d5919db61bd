"""The words of an environment as data, and the wording of its demonstrations.

An environment declares its words once for each prompt style (`PromptName`), as a `Wording`; those that ship with
Squelch stand in a file `prompts.yaml`. Its code fills in the fields and knows no style:

- `tiny`: lower-case words of a closed vocabulary with single spaces between words and punctuation, one digit per
  coordinate, for the tiny policy's word tokenizer.
- `natural`: English sentences with a legend and a worked turn, for pretrained language models.

Demonstrations warm up a policy and are deliberately imperfect (`DemonstrationQuality`): some describe the state in
varied wording, some are generic text that fits any state, some coordinates are wrong and some plans are random. So
training can both increase and decrease input dependence and reward variance. The style changes their words; how often
each of these happens is a setting of the warm-up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from pydantic import Field, TypeAdapter

from squelch.kit.base.settings import Settings
from squelch.kit.untrusted.text import own_yaml

Cell = tuple[int, int]
T = TypeVar("T")

PromptName = Literal["tiny", "natural"]
"""The style of an environment's messages and demonstrations: `environment.prompt`."""
SWAP_RATE = 0.3  # probability that the facts are stated in another order
SHORT_PLAN_RATE = 0.1  # probability that a plan stops after one action


class Rng(Protocol):
    """A generator of uniform numbers in [0, 1), such as `random.Random` and `numpy.random.Generator`."""

    def random(self) -> float:
        """The next number in [0, 1)."""


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
"""Every rate at its default."""


@dataclass(frozen=True)
class Example:
    """A worked turn, which the rules show; `{plan}` in the reasoning stands for the actions."""

    observation: str
    reasoning: str
    actions: tuple[str, ...]


@dataclass(frozen=True)
class Wording:
    """The words of one environment in one style. `{name}` in a text is a field that the environment fills in."""

    rules: str
    """The task, its symbols and its actions, for the system message."""
    shown: Mapping[str, str] = field(default_factory=dict)
    """Texts of observations, by what they show."""
    said: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Texts of demonstrated reasonings, by what they say; one of each tuple is drawn."""
    generic: tuple[tuple[str, ...], ...] = ()
    """A reasoning that fits any state takes one text of each tuple."""
    example: Example | None = None

    def fragments(self) -> list[str]:
        """All texts of reasonings, without their fields."""
        said = [text for group in self.said.values() for text in group]
        return [re.sub(r"{\w+}", " ", text) for text in said] + [text for part in self.generic for text in part]


def wordings_beside(module: str, part: str = "") -> dict[PromptName, Wording]:
    """The words of an environment by prompt style, of the file `prompts.yaml` in the folder of its module, whose
    `__file__` this is; `part`: of a file with the words of several. ValueError for what no wording has."""
    words = own_yaml(Path(module).with_name("prompts.yaml"))
    return TypeAdapter(dict[PromptName, Wording]).validate_python(words[part] if part else words)


def choose(rng: Rng, items: Sequence[T]) -> T:
    """One of `items`, uniformly; needs only `rng.random`, whose stream is the same in every Python version."""
    return items[int(rng.random() * len(items))]


def shuffled(rng: Rng, items: Iterable[T]) -> list[T]:
    """The items in random order."""
    found = list(items)
    return [found[place] for place in draw_distinct(rng, len(found), len(found))]


def draw_distinct(rng: Rng, count: int, size: int) -> list[int]:
    """`count` distinct integers below `size`, uniformly (partial Fisher-Yates)."""
    pool = list(range(size))
    for i in range(count):
        j = i + int(rng.random() * (size - i))
        pool[i], pool[j] = pool[j], pool[i]
    return pool[:count]


def grounded_reasoning(rng: Rng, wording: Wording, facts: Mapping[str, Cell], actions: Sequence[str]) -> str:
    """The facts with their coordinates, in varied wording and order, then the plan; `facts` hold the player's cell."""
    parts = [
        choose(rng, wording.said[name]).format(row=cell[0], column=cell[1], offset=offset(facts["player"], cell))
        for name, cell in facts.items()
    ]
    if rng.random() < SWAP_RATE:
        parts.reverse()
    plan = planned(choose(rng, wording.said["plan_join"]), actions)
    text = f" {choose(rng, wording.said['join'])} ".join(parts) + " " + choose(rng, wording.said["plan"])
    return " ".join(text.format(plan=plan).split())


def planned(join: str, actions: Sequence[str]) -> str:
    """The actions of a plan in words."""
    return join.join(action.lower() for action in actions)


def offset(start: Cell, end: Cell) -> str:
    """The way from one cell to another: `2 rows up and 1 column to the right`, or `right here`."""
    rows, columns = end[0] - start[0], end[1] - start[1]
    parts = [
        f"{abs(count)} {unit}{'s' if abs(count) > 1 else ''} {after if count > 0 else before}"
        for count, unit, before, after in (
            (rows, "row", "up", "down"),
            (columns, "column", "to the left", "to the right"),
        )
        if count
    ]
    return " and ".join(parts) or "right here"


def generic_reasoning(rng: Rng, wording: Wording) -> str:
    """A reasoning that fits any state."""
    return " ".join(choose(rng, part) for part in wording.generic)


def listed(items: Sequence[object]) -> str:
    """`6, 9 and 12`."""
    words = [str(item) for item in items]
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def misplace(rng: Rng, facts: dict[str, Cell], side: int) -> dict[str, Cell]:
    """`facts` with one coordinate pair replaced by a random cell of a board of `side` x `side`."""
    name = choose(rng, list(facts))
    return {**facts, name: (int(rng.random() * side), int(rng.random() * side))}
