"""The search for a non-finite group, on a trainer whose gradient is the number of each group."""

import math
import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from squelch.learner.nonfinite_group import Search

pytestmark = pytest.mark.usefixtures("alone")


@dataclass(frozen=True)
class Batch:
    """A micro-batch with a row of each of these groups."""

    groups: Collection[str]

    def only(self, groups: Collection[str]) -> "Batch":
        return replace(self, groups=[name for name in self.groups if name in groups])


@dataclass
class Trainer:
    """A gradient is infinite if it reaches 1."""

    config, device = SimpleNamespace(step_timeout_s=60.0), torch.device("cpu")
    sizes: dict[str, float]
    passes: list[Collection[str]] = field(default_factory=list)
    summed: float = 0.0

    def zero_grad(self) -> None:
        self.summed = 0.0

    def backward(self, batches: list[Batch], scale: float) -> tuple[float, float, float]:
        for batch in batches:
            self.passes.append(batch.groups)
            self.summed += sum(self.sizes.get(name, 0.0) for name in batch.groups)
        return (math.inf if self.summed >= 1 else self.summed), 0.0, 0.0


def names(place: int, count: int) -> list[str]:
    return [f"{place:02d}-{k:02d}" for k in range(count)]


@given(st.lists(st.integers(1, 12), min_size=1, max_size=8), st.data())
def test_a_single_bad_group_is_found_in_one_pass_and_a_bisection(counts: list[int], data: st.DataObject) -> None:
    places = [names(place, count) for place, count in enumerate(counts)]
    bad = data.draw(st.sampled_from([name for place in places for name in place]))
    trainer = Trainer({bad: 1.0})
    found = Search(trainer, 1.0, time.monotonic()).run([Batch(place) for place in places], places)
    assert found == f"non-finite gradient in group {bad}"
    assert len(trainer.passes) <= len(places) + 1 + math.ceil(math.log2(max(counts)))


def test_gradients_that_are_finite_alone_name_the_groups_up_to_the_place_where_their_sum_is_not() -> None:
    places = [names(0, 2), names(1, 2), names(2, 2)]
    trainer = Trainer({"00-00": 0.6, "01-01": 0.6, "02-00": 0.6})
    found = Search(trainer, 1.0, time.monotonic()).run([Batch(place) for place in places], places)
    assert found == "non-finite gradient of the groups 00-00, 00-01, 01-00, 01-01 together"
