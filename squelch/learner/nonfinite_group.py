"""Finds the group that made an optimizer step non-finite, once a step was found so: healthy steps never come here.

One pass repeats the step's micro-batches until the sum of their gradients is non-finite. Bisection by groups then
repeats only the micro-batches of that place, each time with the sampled tokens of half of the groups that are left:
together at most as many micro-batches as the step had, and 1 + log2(groups) more.

Invariants: every rank runs the same passes, ranks without a row of a group too, and decides by the same reduction. The
search ends with the groups that are left once `SHARE` of `learner.step_timeout_s` has passed on any rank, so that the
step ends with their names and not as a lost learner.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Protocol

import torch
import torch.distributed as dist

from squelch.actors.messages import StepTerms
from squelch.learner.config import LearnerConfig
from squelch.learner.tensors import Batch

SHARE = 0.8
"""Share of `learner.step_timeout_s`, from the step's begin, after which no further pass starts."""


class OutOfTime(Exception):
    """The search must end. Raised on all ranks alike."""


class Learner(Protocol):
    """What the search needs of the trainer."""

    @property
    def config(self) -> LearnerConfig:
        """The settings."""

    @property
    def device(self) -> torch.device:
        """The device of its collectives."""

    def zero_grad(self) -> None:
        """Clears the gradients."""

    def backward(self, batches: Sequence[Batch], terms: StepTerms) -> tuple[float, float, float]:
        """Adds the gradients of micro-batches. The gradient norm, loss and critic's gradient norm, over all ranks."""


class Search:
    """The search in one optimizer step. `begun`: `time.monotonic` at the begin of the training step, on this rank."""

    def __init__(self, trainer: Learner, terms: StepTerms, begun: float) -> None:
        self.trainer, self.terms = trainer, terms
        self.deadline = begun + SHARE * trainer.config.step_timeout_s
        self._suspects: Sequence[str] = ()
        self._kind = "value"

    def run(self, batches: Sequence[Batch], groups: Sequence[Sequence[str]]) -> str:
        """The reason to refuse the step. `batches`: this rank's micro-batches; `groups[k]`: ids of the groups with a
        row in micro-batch number k of any rank, sorted. A collective."""
        self._suspects = _union(groups)
        try:
            return self._search(batches, groups)
        except OutOfTime:
            names = ", ".join(self._suspects)
            return f"non-finite {self._kind} in one of the groups {names}: the search for it ran out of time"

    def _search(self, batches: Sequence[Batch], groups: Sequence[Sequence[str]]) -> str:
        place = self._first_bad_place(batches)
        self._suspects = groups[place]
        while True:
            half = self._suspects[: -(-len(self._suspects) // 2)]
            bad = self._bad(batches[place].only(half))
            if len(half) == 1 and bad:
                return f"non-finite {self._kind} in group {half[0]}"
            if len(self._suspects) == 1:
                return f"non-finite gradient of the groups {', '.join(_union(groups[: place + 1]))} together"
            self._suspects = half if bad else self._suspects[len(half) :]

    def _first_bad_place(self, batches: Sequence[Batch]) -> int:
        """The first place at which the sum of the gradients so far is non-finite; the last one needs no check, because
        the whole sum is known to be."""
        self.trainer.zero_grad()
        for place, batch in enumerate(batches[:-1]):
            if self._bad(batch, summed=True):
                return place
        return len(batches) - 1

    def _bad(self, batch: Batch, summed: bool = False) -> bool:
        """Whether the loss or gradient is not finite on any rank; `summed`: with the gradients of the passes before."""
        self._check_time()
        if not summed:
            self.trainer.zero_grad()
        norm, loss, critic = self.trainer.backward([batch], self.terms)
        bad = not math.isfinite(norm + loss + critic)
        if bad:
            self._kind = "gradient" if math.isfinite(loss) else "loss"
        return bad

    def _check_time(self) -> None:
        late = torch.tensor(float(time.monotonic() > self.deadline), device=self.trainer.device)
        dist.all_reduce(late, op=dist.ReduceOp.MAX)
        if late.item():
            raise OutOfTime


def _union(groups: Sequence[Sequence[str]]) -> list[str]:
    return sorted({group_id for place in groups for group_id in place})
