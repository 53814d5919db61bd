"""Answers who gives a run a key of another trainer: the setting of Squelch that does the same, or why there is none.

The keys are those of `kit.importing.tables`, in which `squelch import` looks, too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from squelch.kit.importing.tables import ALWAYS, Row, every_row

MOST_ROWS = 3
"""Keys that one answer names."""
WAYS = 3
"""Ways in which a key is found: by the whole name, by its last part, by one of its words."""
PREFIX = "actor_rollout_ref."
"""What verl's users leave out when they speak of a key."""
Hit = tuple[Row, str]
"""A row and the spelling that was found."""


@lru_cache(maxsize=1)
def _keys() -> list[tuple[str, Row]]:
    """(spelling, row) of every key of another trainer that has a counterpart, or a reason for having none."""
    told = [row for row in every_row() if not row.pattern and row.key != ALWAYS and (row.settings or row.note)]
    return [(name.removeprefix(PREFIX), row) for row in told for name in row.names]


def found(key: str, ways: int = WAYS) -> list[Hit]:
    """What a key means elsewhere, at most `MOST_ROWS`, first those with most such names: by the whole name, else by its
    last part, else by one of its words, as `vllm` in `vllm_max_model_length`; in the first `ways` of these."""
    word = key.lower().removeprefix(PREFIX)
    last = word.rpartition(".")[2]
    kinds = (
        lambda name: name == word,
        lambda name: name.rpartition(".")[2] == last,
        lambda name: last in re.split(r"[._]", name),
    )
    for matches in kinds[:ways]:
        hits: dict[tuple[str, ...], list[Hit]] = {}
        for name, row in _keys():
            if matches(name.lower()):
                hits.setdefault(row.settings or (row.note,), []).append((row, name))
        if hits:
            return [own[0] for own in sorted(hits.values(), key=len, reverse=True)][:MOST_ROWS]
    return []


def settings_named(hits: Sequence[Hit]) -> set[str]:
    """The settings of Squelch that the hits name."""
    return {setting for row, _ in hits for setting in row.settings}


def answer(key: str, ways: int = WAYS) -> str:
    """What a key of another trainer is here, in sentences; empty if no trainer is known to have it. `ways`: as of
    `found`."""
    return " ".join(dict.fromkeys(_sentence(*hit) for hit in found(key, ways)))


def _sentence(row: Row, name: str) -> str:
    note = f" {row.note}" if row.note else ""
    if not row.settings:
        return f"{row.trainer}'s {name} has no counterpart.{note}"
    same = [one for other, one in _keys() if other == name and one.trainer == row.trainer]
    here = dict.fromkeys(setting for one in same for setting in one.settings)
    return f"{row.trainer}'s {name} is {' and '.join(here)} here.{note}"
