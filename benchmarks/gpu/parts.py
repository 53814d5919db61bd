"""The parts of `benchmarks.gpu`, the most valuable first. Imports the standard library only."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """`function`: `module:name` of a generator of metrics; `seconds`: after which it is stopped; `needs`: packages
    besides those that every part needs without which it is skipped."""

    function: str
    seconds: float
    needs: tuple[str, ...] = ()
    slow_on_cpu: bool = False
    """Compilation or an engine's start takes minutes on a CPU."""
    by_name: bool = False
    """It runs only where `--parts` names it."""


RUN = ("ray", "vllm")
PARTS = {
    "learner, Qwen2.5-0.5B": Part("benchmarks.gpu.step:qwen", 120),
    "learner, SmolLM2-135M": Part("benchmarks.gpu.step:smollm", 90),
    "cross-scoring": Part("benchmarks.gpu.scoring:measure", 120),
    "tests": Part("benchmarks.gpu.cuda_tests:measure", 150, ("pytest", "hypothesis")),
    "memory": Part("benchmarks.gpu.peaks:measure", 120),
    "publication": Part("benchmarks.gpu.publication:measure", 90),
    "learner, compiled": Part("benchmarks.gpu.step:compiled", 150, slow_on_cpu=True),
    "run: workers": Part("benchmarks.peer.on_gpu.measure:workers", 330, RUN, by_name=True),
    "run: update": Part("benchmarks.gpu.update:measure", 120, by_name=True),
    "run: staleness": Part("benchmarks.peer.on_gpu.measure:stale", 160, RUN, by_name=True),
    "run: ragged": Part("benchmarks.peer.on_gpu.measure:ragged", 220, RUN, by_name=True),
    "run: sleep": Part("benchmarks.peer.on_gpu.measure:asleep", 180, RUN, by_name=True),
    "run: 3B": Part("benchmarks.peer.on_gpu.measure:three_billion", 240, RUN, by_name=True),
}
WHOLE_RUN = (
    *("run: workers", "publication", "run: update", "cross-scoring"),
    *("run: staleness", "run: ragged", "run: sleep", "run: 3B"),
)
"""What `--parts run` stands for, in order. TRL is loaded beside Squelch, so that both are measured in the first."""


def installed(package: str) -> bool:
    """Whether the package can be imported; it is not imported."""
    return importlib.util.find_spec(package) is not None
