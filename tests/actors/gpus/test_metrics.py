"""The work of a step against what its GPUs could do."""

import math

import pytest

from squelch.actors.gpus.metrics import Efficiency
from squelch.actors.gpus.records import GpuUse, Operations

FLAT = {
    "seconds/step": 7.0,
    "seconds/train": 1.5,
    "learner_seconds/forward_backward": 1.25,
    "tokens/sampled": 65_536.0,
    "tokens/trained": 60_000.0,
}
WORK = Operations(products=2e14, attention=2.5e13, per_token=1e9)


def gpu(actor: str, identity: str = "a", peak: float = 989e12, busy: float = 0.31) -> GpuUse:
    return GpuUse(actor, identity, "NVIDIA H200", peak, busy, used=43.0, total=141.0, own=math.nan)


def reported(learners: list[GpuUse], workers: list[GpuUse]) -> Efficiency:
    efficiency = Efficiency()
    efficiency.trained(WORK, learners)
    efficiency.updated(workers)
    return efficiency


def test_operations_are_divided_by_the_time_of_each_part_and_attention_stands_apart() -> None:
    found = reported([gpu("learner-0")], [gpu("rollout-0")]).metrics(FLAT, 3.5)
    assert found["operations/forward_backward/products"] == 2e14 / 1.25
    assert found["operations/train/attention"] == 2.5e13 / 1.5
    assert found["operations/rollout/products"] == 65_536e9 / 3.5
    assert found["operations/step/products"] == (2e14 + 65_536e9) / 7.0
    assert found["mfu/step/products"] == pytest.approx((2e14 + 65_536e9) / 7.0 / 989e12)
    assert found["mfu/forward_backward/attention"] == pytest.approx(2.5e13 / 1.25 / 989e12)
    assert found["tokens_per_second/rollout"] == 65_536 / 3.5 and found["tokens_per_second/train"] == 40_000


def test_a_shared_gpu_counts_once_and_separate_gpus_each() -> None:
    shared = reported([gpu("learner-0")], [gpu("rollout-0"), gpu("rollout-1")]).metrics(FLAT, 3.5)
    apart = reported([gpu("learner-0"), gpu("learner-1", "b")], [gpu("rollout-0", "c"), gpu("rollout-1", "d")]).metrics(
        FLAT, 3.5
    )
    ratio = {key: shared[key] / apart[key] for key in shared if key.startswith("mfu/")}
    assert ratio["mfu/train/products"] == ratio["mfu/rollout/products"] == pytest.approx(2)
    assert ratio["mfu/step/products"] == pytest.approx(4)


def test_without_a_known_peak_the_rates_remain() -> None:
    for learners, workers in (([], []), ([gpu("learner-0", "b", math.nan)], [gpu("rollout-0")])):
        efficiency = reported(learners, workers)
        found = efficiency.metrics(FLAT, 3.5)
        assert found["operations/step/products"] > 0 and "mfu/step/products" not in found
        assert ("mfu/rollout/products" in found) == bool(workers)
        assert efficiency.unknown() == (["NVIDIA H200"] if learners else [])


def test_a_gpu_on_which_actors_compute_in_two_types_has_the_higher_peak() -> None:
    found = reported([gpu("learner-0", peak=67e12)], [gpu("rollout-0")]).metrics(FLAT, 3.5)
    assert found["mfu/step/products"] == found["operations/step/products"] / 989e12
    assert found["mfu/train/products"] == found["operations/train/products"] / 67e12


def test_a_step_without_an_update_has_the_engines_work_alone() -> None:
    efficiency = reported([gpu("learner-0")], [gpu("rollout-0")])
    found = efficiency.metrics(FLAT | {"tokens/trained": 0.0}, 3.5)
    assert found["operations/step/products"] == found["operations/rollout/products"] / 2
    assert "mfu/train/products" not in found
    assert Efficiency().metrics(FLAT, 0.0) == {"tokens_per_second/train": 40_000}


def test_gpus_are_reported_by_actor_as_far_as_they_are_known() -> None:
    found = reported([gpu("learner-0", busy=math.nan)], [gpu("rollout-0")]).metrics(FLAT, 3.5)
    assert {key for key in found if key.startswith("gpu/learner-0/")} == {
        "gpu/learner-0/memory_used",
        "gpu/learner-0/memory_total",
    }
    assert found["gpu/rollout-0/busy"] == 0.31
