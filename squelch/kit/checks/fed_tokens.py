"""Whether the loss sees the tokens that the policy sampled, and no others: counts, rollout by rollout. Pure.

A token that was fed (the text of a tool or of a user) is told from a sampled one, by what the files have:

- the format says which were sampled (Squelch, verifiers): exact;
- the trainer's own log-probabilities stand beside the engine's (NeMo-RL): a fed token has 0 from the engine, and
  less than `UNLIKELY` from the trainer, while a sampled token of 0 is certain for both;
- the engine's stand alone (slime): a policy stops at its end token, so what follows that id within one run of learned
  tokens was fed, if the engine gives 0 to all of it. How often a healthy policy is that certain for as long, is
  measured on the file's other tokens; where that happens, the check is unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from squelch.kit.checks.result import show
from squelch.kit.findings.view import MOST_EXAMPLES, Example
from squelch.kit.readers.format_rows import marks_of

UNLIKELY = -1.0
"""Nats; the two engines differ by hundredths of it on a token that is certain for one."""
MOST_ENDS = 32
"""Ids that are looked at as end tokens."""


@dataclass
class Fed:
    """What was seen so far. `how`: by what fed tokens are told from sampled ones, or empty."""

    rollouts: int = 0
    tokens: int = 0
    how: str = ""
    learned: int = 0
    """Fed tokens under the loss; and rollouts that have some."""
    learned_rollouts: int = 0
    left: int = 0
    """Sampled tokens that no loss sees; and rollouts that have some."""
    left_rollouts: int = 0
    whole: int = 0
    """Rollouts that no limit cut; and by their last learned id, how many."""
    ends: Counter[int] = field(default_factory=Counter)
    after_end: Counter[int] = field(default_factory=Counter)
    """By id: times that it stands within a run of learned tokens; with 0 after it; ids of 0 after it."""
    zero_after_end: Counter[int] = field(default_factory=Counter)
    zeros_after_end: Counter[int] = field(default_factory=Counter)
    others: int = 0
    """Learned tokens that follow no end token; of them those of log-probability 0; and those after another one."""
    zero: int = 0
    zero_twice: int = 0
    examples: dict[str, list[Example]] = field(default_factory=dict)

    def take(self, said: Mapping[str, Any], where: str, is_whole: bool) -> None:
        """Takes what a rollout's `learned` gave."""
        if said["mask"] is None or not len(said["ids"]):
            return
        self.rollouts += 1
        self.tokens += len(said["ids"])
        mask = np.frombuffer(marks_of(said["mask"]), bool)
        if said["sampled"] is not None:
            self.how = "marks"
            sampled = np.frombuffer(marks_of(said["sampled"]), bool)
            self._count(mask & ~sampled, sampled & ~mask, where)
            return
        drawn = numbers_of(said["logprobs"])
        if drawn is None:
            return
        zero = drawn == 0
        trained = numbers_of(said["trained"])
        left = ~mask & (drawn < 0)
        if trained is not None:
            self.how = "trainer"
            self._count(mask & zero & (trained < UNLIKELY), left, where)
            return
        self.how = "ends"
        self._count(np.zeros_like(mask), left, where)
        self._ends(said["ids"], mask, zero, is_whole, where)

    def _count(self, learned: np.ndarray, left: np.ndarray, where: str) -> None:
        for name, marks in (("learned", learned), ("left", left)):
            if number := int(marks.sum()):
                setattr(self, name, getattr(self, name) + number)
                setattr(self, f"{name}_rollouts", getattr(self, f"{name}_rollouts") + 1)
                show(self.examples, name, where, f"{number} of {len(marks)} tokens, the first at {int(marks.argmax())}")

    def _ends(self, ids: Sequence[int], mask: np.ndarray, zero: np.ndarray, is_whole: bool, where: str) -> None:
        """Counts what follows the ids with which rollouts end, within a run of learned tokens."""
        numbers, certain = np.array(ids, np.int32), zero & mask
        inside, learned = np.flatnonzero(mask[:-1] & mask[1:]), np.flatnonzero(mask)
        if is_whole and len(learned):
            last = int(numbers[learned[-1]])
            self.whole += 1
            if last in self.ends or len(self.ends) < MOST_ENDS:
                self.ends[last] += 1
        usual = [one for one, count in self.ends.items() if 2 * count >= self.whole]
        if not certain.any():
            self.others += len(learned)
            for end in usual:
                self.after_end[end] += int((numbers[inside] == end).sum())
            return
        stops = np.append(np.flatnonzero(~certain), len(mask))
        edges = np.zeros(len(mask) + 1, int)
        for end in usual:
            begins = 1 + inside[numbers[inside] == end]
            stretches = stops[np.searchsorted(stops, begins)] - begins
            self.after_end[end] += len(begins)
            begins, stretches = begins[stretches > 0], stretches[stretches > 0]
            edges[begins] += 1
            np.subtract.at(edges, begins + stretches, 1)
            self.zero_after_end[end] += len(begins)
            self.zeros_after_end[end] += int(stretches.sum())
            for begin, stretch in zip(begins[:MOST_EXAMPLES], stretches, strict=False):
                show(self.examples, "after_end", where, f"{stretch} tokens after the end token {end}, at {begin}")
        fed = edges[:-1].cumsum() > 0
        own = certain & ~fed
        self.others += int((mask & ~fed).sum())
        self.zero += int(own.sum())
        self.zero_twice += int((own[1:] & own[:-1]).sum())


def numbers_of(values: Any) -> np.ndarray | None:
    """(n,) values, NaN for None; None if there are none."""
    if not isinstance(values, list) or not values:
        return None
    try:
        found = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if found.ndim == 1 else None
