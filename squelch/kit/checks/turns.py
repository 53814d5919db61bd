"""Whether the ids of a rollout's prompt extend those of the turn before: exact ids are fed again, or text was encoded
anew. Pure.

A history may be rewritten on purpose (compacted, without old reasoning), so ids that differ are no fault by
themselves: only where they spell the same text were they encoded anew. The two ends that differ are kept for the check
that can decode them (`encoding.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from squelch.kit.records.shared_prefix import common_length

KEPT = 200
"""Pairs of turns that differ and are kept to be decoded."""


@dataclass
class Continued:
    """The turns so far. `differing`: (where, ids of the turn before, of this one), from where they differ on."""

    turns: int = 0
    broken: int = 0
    differing: list[tuple[str, list[int], list[int]]] = field(default_factory=list)
    _rollout: str = ""
    _ids: list[int] = field(default_factory=list)

    def take(self, row: Mapping[str, Any], rollout: str, where: str) -> None:
        """Takes the next row; turns of a rollout follow one another."""
        prompt, said = row.get("prompt_ids"), row.get("completion_ids")
        if not isinstance(prompt, list) or not isinstance(said, list):
            self._rollout = ""
            return
        if row.get("turn") and rollout == self._rollout:
            self.turns += 1
            if prompt[: len(self._ids)] != self._ids:
                self._differ(where, self._ids, prompt)
        self._rollout, self._ids = rollout, [*prompt, *said]

    def _differ(self, where: str, before: Sequence[int], now: Sequence[int]) -> None:
        self.broken += 1
        if len(self.differing) < KEPT:
            place = common_length([np.asarray(before), np.asarray(now)])
            self.differing.append((where, list(before[place:]), list(now[place:])))
