"""The tables of other trainers' keys, a file each beside this module.

| column | content |
|---|---|
| key | the trainer's key; a pattern with `*` for keys that concern its own processes; `-`: what it does without a key |
| also | other spellings, separated by spaces: older releases, command line |
| default | the value in the release of `RELEASES` where a configuration leaves the key out, as YAML; empty: none |
| here | the setting of Squelch; empty: none; a word with `--` before it is for `recipe` |
| value | how the value becomes the setting's: clauses of `values`; empty: as it is |
| note | what differs, or why there is no counterpart |
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

from squelch.kit.untrusted.text import parse_yaml

RELEASES = {"verl": "0.9.1", "TRL": "1.16.0", "prime-rl": "of September 2026", "OpenRLHF": "0.11.2"}
"""The trainers, and the releases whose keys and defaults the tables have."""
ALWAYS = "-"
SPECIAL = {
    "--gpus": ("learner.ranks", "rollout.count"),
    "--reward": ("environment.options.reward",),
    "--reward-name": ("environment.options.reward",),
    "--rewards": ("environment.options.reward",),
    "--weights": ("environment.options.reward",),
    "--verifiers": ("environment.options.data",),
}
"""The settings that `recipe` makes of several keys, by their word in the column `here`."""


@dataclass(frozen=True)
class Row:
    """A row; the columns are in the module's head."""

    trainer: str
    key: str
    also: tuple[str, ...]
    default: str
    here: str
    value: str
    note: str

    @property
    def names(self) -> tuple[str, ...]:
        """All spellings of the key."""
        return (self.key, *self.also)

    @property
    def setting(self) -> str:
        """The setting of Squelch; empty if there is none."""
        return "" if self.here in SPECIAL else self.here

    @property
    def settings(self) -> tuple[str, ...]:
        """The settings of Squelch that the key decides on, alone or with others."""
        return SPECIAL.get(self.here, (self.here,) if self.here else ())

    @property
    def pattern(self) -> bool:
        """Whether the row is for every key of a pattern."""
        return "*" in self.key

    @property
    def default_value(self) -> Any:
        """The default as a value; None also where there is none."""
        return scalar(self.default)


def scalar(text: str) -> Any:
    """The value of a short YAML text; the text itself if it is none."""
    try:
        return parse_yaml(text, "a value")
    except ValueError:
        return text


@lru_cache(maxsize=8)
def rows(trainer: str) -> tuple[Row, ...]:
    """The table of a trainer."""
    path = Path(__file__).with_name(f"{trainer.lower()}.csv")
    with path.open(encoding="utf-8", newline="") as file:
        found = list(csv.reader(file))[1:]
    return tuple(Row(trainer, key, tuple(also.split()), *rest) for key, also, *rest in found)


def every_row() -> Iterator[Row]:
    """The rows of all trainers."""
    for trainer in RELEASES:
        yield from rows(trainer)


def rows_of(trainer: str, key: str) -> list[Row]:
    """The rows of a key: those that name it, else the first pattern that it matches, or that has it among its other
    spellings; empty for an unknown key."""
    table = rows(trainer)
    named = [row for row in table if key in row.names and not row.pattern]
    patterns = (row for row in table if row.pattern and (key in row.also or fnmatchcase(key, row.key)))
    return named or [row for row in (next(patterns, None),) if row is not None]
