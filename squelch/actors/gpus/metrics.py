"""Metrics of the work of a step against what its GPUs could do. Pure.

Model FLOPs are those of the matrix products that the step needs: the learner's passes over packed rows, and one forward
pass for each sampled token. Attention's products are counted apart, because they depend on the lengths; recomputed
activations are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from operator import attrgetter

from squelch.actors.gpus.records import GpuUse, Operations
from squelch.kit.metrics.declared import declared

LEARNED = ("forward_backward", "train", "step")
"""Parts with the learner's passes: the passes alone, the whole call of the learner, the step's wall time."""
METRICS = declared(__file__, LEARNED=LEARNED)


class Efficiency:
    """Collects what the actors report of their work and GPUs, and compares both when a step is recorded."""

    def __init__(self) -> None:
        self._work = Operations()
        self._learners: dict[str, GpuUse] = {}
        self._workers: dict[str, GpuUse] = {}

    def trained(self, work: Operations | None, gpus: Iterable[GpuUse]) -> None:
        """Takes the learner's report; `work` is None for a step without an update."""
        self._work = work or self._work
        self._learners = {gpu.actor: gpu for gpu in gpus} or self._learners

    def updated(self, gpus: Iterable[GpuUse | None]) -> None:
        """Takes the rollout workers' reports of a weight update."""
        found = {gpu.actor: gpu for gpu in gpus if gpu is not None}
        self._workers = found or self._workers

    def unknown(self) -> list[str]:
        """Names of GPUs whose peak is not known."""
        return sorted({gpu.name for gpu in self._all().values() if math.isnan(gpu.peak)})

    def metrics(self, flat: Mapping[str, float], sampling_s: float) -> dict[str, float]:
        """Flat metrics of a step with these times, in which engines sampled for `sampling_s` seconds."""
        seconds = {
            "forward_backward": flat.get("learner_seconds/forward_backward", 0.0),
            "train": flat.get("seconds/train", 0.0),
            "rollout": sampling_s,
            "step": flat["seconds/step"],
        }
        sampled = flat["tokens/sampled"] * self._work.per_token
        work = self._work if flat.get("tokens/trained") else Operations()
        products = dict.fromkeys(("forward_backward", "train"), work.products)
        products |= {"rollout": sampled, "step": work.products + sampled}
        done = {(part, "products"): number for part, number in products.items()}
        done |= {(part, "attention"): work.attention for part in LEARNED}
        peaks = dict.fromkeys(("forward_backward", "train"), _peak(self._learners))
        peaks |= {"rollout": _peak(self._workers), "step": _peak(self._all())}
        found: dict[str, float] = {}
        for (part, kind), number in done.items():
            if number > 0 and seconds[part] > 0:
                found[f"operations/{part}/{kind}"] = rate = number / seconds[part]
                if peaks[part] > 0:
                    found[f"mfu/{part}/{kind}"] = rate / peaks[part]
        tokens = {"rollout": flat["tokens/sampled"], "train": flat.get("tokens/trained", 0.0)}
        found |= {f"tokens_per_second/{part}": n / seconds[part] for part, n in tokens.items() if seconds[part] > 0}
        return found | self._gpu_metrics()

    def _all(self) -> dict[str, GpuUse]:
        return self._learners | self._workers

    def _gpu_metrics(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for actor, gpu in self._all().items():
            known = {"busy": gpu.busy, "memory_used": gpu.used, "memory_total": gpu.total, "memory_own": gpu.own}
            found |= {f"gpu/{actor}/{what}": value for what, value in known.items() if not math.isnan(value)}
        return found


def _peak(gpus: Mapping[str, GpuUse]) -> float:
    """The peak of the GPUs together, each counted once, in the faster of the types in which its actors compute; NaN
    if one is not known, 0 without GPUs."""
    return sum({gpu.identity: gpu.peak for gpu in sorted(gpus.values(), key=attrgetter("peak"))}.values())
