"""The names of a run's settings in TRL, verl and prime-rl: a table from which docs/guide/coming-from.md is generated,
and which answers who gives such a name here.

The rows are in other_names.csv; cells of several names separate them by a space.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).with_name("other_names.csv")
MOST_ROWS = 3
"""Rows that one answer names."""


@dataclass(frozen=True)
class Row:
    """The names of one thing.

    Attributes:
        table: title of the page's table that has this row.
        here: settings of Squelch, or a flag such as `--resume`; empty where Squelch has nothing of the kind.
        trl: fields of `GRPOConfig` or arguments of `GRPOTrainer`.
        verl: keys of `ppo_trainer.yaml`; `actor.` and `rollout.` stand for `actor_rollout_ref.actor.` and so on.
        prime_rl: keys of an `rl` file of prime-rl.
        note: what differs, as one sentence; empty if the value can be copied.
    """

    table: str
    thing: str
    here: Sequence[str]
    trl: Sequence[str]
    verl: Sequence[str]
    prime_rl: Sequence[str]
    note: str

    def named(self) -> Iterator[tuple[str, str]]:
        """(trainer, name) of every name elsewhere."""
        for trainer, names in (("TRL", self.trl), ("verl", self.verl), ("prime-rl", self.prime_rl)):
            yield from ((trainer, name) for name in names)


def rows() -> list[Row]:
    """All rows, in the page's order."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return [
            Row(table, thing, here.split(), trl.split(), verl.split(), prime_rl.split(), note)
            for table, thing, here, trl, verl, prime_rl, note in list(csv.reader(file))[1:]
        ]


WAYS = 3
"""Ways in which a key is found: by the whole name, by its last part, by one of its words."""


def found(key: str, ways: int = WAYS) -> list[tuple[Row, str, str]]:
    """(row, trainer, name) of what a key means elsewhere, at most `MOST_ROWS`, first those with most such names: by the
    whole name, else by its last part, else by one of its words, as `vllm` in `vllm_max_model_length`; in the first
    `ways` of these."""
    word = key.lower().removeprefix("actor_rollout_ref.")
    last = word.rpartition(".")[2]
    kinds = (
        lambda name: name in (word, key.lower()),
        lambda name: name.rpartition(".")[2] == last,
        lambda name: last in re.split(r"[._]", name),
    )
    table = rows()
    for matches in kinds[:ways]:
        hits = [[(row, trainer, name) for trainer, name in row.named() if matches(name.lower())] for row in table]
        if any(hits):
            return [own[0] for own in sorted(hits, key=len, reverse=True) if own][:MOST_ROWS]
    return []


def answer(key: str, ways: int = WAYS) -> str:
    """What a key of another trainer is here, in sentences; empty if no trainer is known to have it. `ways`: as of
    `found`."""
    return " ".join(_sentence(*hit) for hit in found(key, ways))


def _sentence(row: Row, trainer: str, name: str) -> str:
    note = f" {row.note}" if row.note else ""
    if not row.here:
        return f"{trainer}'s {name} ({row.thing}) has no counterpart.{note}"
    return f"{trainer}'s {name} is {' and '.join(row.here)} here.{note}"
