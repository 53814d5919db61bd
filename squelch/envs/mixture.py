"""The environments of a run: one, or several with a weight each. Pure.

A run has either `environment`, its only one, or `environments`, a list. Everything that plays, counts or names
environments reads a `Mixture`, which has one entry or several, so that no caller distinguishes the two. The label of
an only environment is empty, and nothing is split by an empty label.

Who issues, who waits: the coordinator issues the k-th ticket of the run for the entry that `Schedule` gives k, and
nobody waits for an environment in particular. A ticket's task names its entry by label; every environment actor can
play every entry, and the filter, the validation and the archive read the label from the task.

Invariants:

- The schedule is a pure function of k and the weights, so that a resumed run needs no state beside its number of
  tickets, and it is exact: after any k tickets, each entry has fewer than one ticket more or less than its share of k
  (the chairman assignment of Tijdeman, Discrete Mathematics 32 (1980) 323, in whole numbers).
- The k-th ticket of an entry plays its k-th training task. A refill round takes the next tickets of the same schedule.
- An entry of `environments` takes what it leaves open from the defaults, and never from `environment` or its
  neighbours, so that it reads the same wherever it stands.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

from squelch.envs.config import EnvironmentConfig, EnvironmentEntry


@dataclass(frozen=True)
class Entry:
    """One environment of a run. `key`: its setting, e.g. `environments[1]`; `label`: empty for a run's only one."""

    environment: EnvironmentConfig
    key: str = "environment"
    label: str = ""
    weight: float = 1.0
    max_tokens_per_turn: int | None = None
    """Most sampled tokens of a turn; None: those of the run."""

    @property
    def name(self) -> str:
        """What it is called in messages: its label, or the environment's name."""
        return self.label or self.environment.name

    def tokens(self, of_the_run: int) -> int:
        """Most sampled tokens of a turn."""
        return self.max_tokens_per_turn or of_the_run

    @property
    def tokens_key(self) -> str:
        """The setting of `tokens`."""
        return f"{'sampling' if self.max_tokens_per_turn is None else self.key}.max_tokens_per_turn"

    def keyed(self, text: str) -> str:
        """The text of an error with this entry's key in place of `environment`."""
        return re.sub(r"\benvironment\.(?=[a-z_]+\b)", f"{self.key}.", text)


@dataclass(frozen=True)
class Turn:
    """Whose turn a ticket is: the entry's place in the mixture, and the number of its tickets before this one."""

    entry: int
    before: int


class Schedule:
    """Which entry plays the k-th ticket of a run, from 0; see the module's invariants. Weights are above 0."""

    def __init__(self, weights: Sequence[float]) -> None:
        exact = [Fraction(repr(float(weight))) for weight in weights]
        scale = math.lcm(*(one.denominator for one in exact))
        whole = [int(one * scale) for one in exact]
        common = math.gcd(*whole)
        self._weights = [one // common for one in whole]
        self._cycle = sum(self._weights)
        """After so many tickets every entry has exactly its share, and the schedule repeats."""
        multiple = math.lcm(*self._weights)
        self._spacing = [multiple // weight for weight in self._weights]
        """Between two due tickets of an entry, in the same unit for all."""
        self._turns: list[Turn] = []
        self._counts = [0] * len(whole)

    def turn(self, ticket: int) -> Turn:
        """Whose turn the ticket is."""
        cycles, place = divmod(ticket, self._cycle)
        while len(self._turns) <= place:
            self._next()
        turn = self._turns[place]
        return Turn(turn.entry, cycles * self._weights[turn.entry] + turn.before)

    def _next(self) -> None:
        """Of the entries that may have a ticket more, the one whose next ticket is due first."""
        number, slack = len(self._turns) + 1, max(1, 2 * len(self._weights) - 2)
        may = [
            i
            for i, weight in enumerate(self._weights)
            if (weight * number - self._cycle * self._counts[i]) * slack >= self._cycle
        ]
        entry = min(may, key=lambda i: ((self._counts[i] * slack + slack - 1) * self._spacing[i], i))
        self._turns.append(Turn(entry, self._counts[entry]))
        self._counts[entry] += 1


@dataclass(frozen=True)
class Mixture:
    """The environments of a run, in the order of the settings."""

    entries: tuple[Entry, ...]

    @classmethod
    def of(cls, environment: EnvironmentConfig | Mixture) -> Mixture:
        """The mixture itself, or that of an only environment."""
        return environment if isinstance(environment, Mixture) else cls((Entry(environment),))

    @classmethod
    def several(cls, listed: Sequence[EnvironmentEntry]) -> Mixture:
        """The mixture of the setting `environments`."""
        entries = (
            Entry(one, f"environments[{place}]", one.label or one.name, one.weight, one.max_tokens_per_turn)
            for place, one in enumerate(listed)
        )
        return cls(tuple(entries))

    @property
    def name(self) -> str:
        """What the run plays, e.g. `FrozenLake` or `FrozenLake + Sokoban`."""
        return " + ".join(entry.name for entry in self.entries)

    @property
    def file_name(self) -> str:
        """`name` in the name of a folder, at most 100 characters of it: labels may be long."""
        return "+".join(entry.name for entry in self.entries).replace("/", "_").replace(":", "_")[:100]

    @property
    def labels(self) -> list[str]:
        """The labels by which metrics are split; none for an only environment."""
        return [entry.label for entry in self.entries if entry.label]

    @cached_property
    def shares(self) -> dict[str, float]:
        """Each label's share of the weights."""
        total = math.fsum(entry.weight for entry in self.entries)
        return {entry.label: entry.weight / total for entry in self.entries}

    @property
    def heaviest(self) -> Entry:
        """The entry of the largest weight, the first of several."""
        return max(self.entries, key=lambda entry: entry.weight)

    @property
    def most_turns(self) -> int:
        """Most turns of an episode, as far as the settings say."""
        return max(entry.environment.format.max_turns or 1 for entry in self.entries)

    def with_each(self, changed: Callable[[EnvironmentConfig], EnvironmentConfig]) -> Mixture:
        """The mixture with `changed` settings of each environment."""
        return Mixture(tuple(replace(entry, environment=changed(entry.environment)) for entry in self.entries))

    def facts(self, **chosen: Any) -> Any:
        """The settings of its environments as plain data, `chosen` as in pydantic's `model_dump`: those of an only one
        themselves, of several a list with their weights."""
        dumped = [entry.environment.model_dump(mode="json", **chosen) for entry in self.entries]
        weights = [entry.weight for entry in self.entries]
        return [[*pair] for pair in zip(weights, dumped, strict=True)] if self.labels else dumped[0]

    def schedule(self) -> Schedule:
        """The schedule of its weights."""
        return Schedule([entry.weight for entry in self.entries])

    def labelled(self, label: str) -> Entry:
        """The entry of this label. ValueError if there is none."""
        for entry in self.entries:
            if entry.label == label:
                return entry
        known = ", ".join(repr(entry.label) for entry in self.entries)
        raise ValueError(f"the run has no environment labelled {label!r}; it has {known}")
