"""Whether this machine has the memory that a run on it takes at least, counted before any actor starts. Where it has
not, Ray's memory monitor would kill actors later, the learner first, without a word about the others.

The counts are lower bounds: the libraries of each process, weights, and what training keeps beside them. Batches,
caches and environments come on top; `squelch plan` estimates them.
"""

from __future__ import annotations

from squelch.actors.model_size import BYTES
from squelch.actors.process.free_memory import free_memory
from squelch.cluster.config import RunConfig
from squelch.cluster.control.scaling import Kind, start_counts
from squelch.cluster.fleet.object_store import MIB, needed_mib

GIB = 2**30
ENGINE_GIB, PROCESS_GIB = 1.6, 0.4
"""Libraries of a rollout worker on a CPU, both of its processes, and of any other actor."""
RAYS_SHARE = 0.95
"""Share of the memory in use at which Ray's monitor kills actors, unless RAY_memory_usage_threshold says otherwise."""
TRAINED_BYTES, FROZEN_BYTES = 16, 4
"""Bytes of a parameter in float32: with its gradient and Adam's two moments, and under adapters alone."""


def note(config: RunConfig, published: int) -> str | None:
    """A warning with figures if the run takes more memory than is free here; None if it does not. `published`: bytes of
    a version of the weights."""
    parts, free = least(config, published // BYTES[config.rollout.dtype]), free_memory()
    needed = sum(parts.values())
    if needed <= RAYS_SHARE * free:
        return None
    figures = ", ".join(f"{name} {size / GIB:.1f}" for name, size in parts.items())
    return (
        f"this machine has {free / GIB:.1f} GiB of memory free and the run takes at least {needed / GIB:.1f} "
        f"({figures}): Ray's memory monitor will kill actors, the learner first. End other programs, or start fewer or "
        "smaller actors (`squelch plan` says what each takes)"
    )


def least(config: RunConfig, parameters: int) -> dict[str, float]:
    """Bytes of this machine's memory that the parts of a run take at least, by their names; of actors on GPUs their
    libraries alone."""
    counts, learner, scorer = start_counts(config), config.learner, config.scorer
    trained = 0 if learner.num_gpus > 0 else parameters * (FROZEN_BYTES if learner.lora else TRAINED_BYTES)
    sampled = 0 if config.rollout.num_gpus > 0 else parameters * BYTES[config.rollout.dtype]
    parts = {
        _counted(counts[Kind.ROLLOUT], "rollout worker"): counts[Kind.ROLLOUT] * (ENGINE_GIB * GIB + sampled),
        _counted(learner.ranks, "learner rank"): learner.ranks * PROCESS_GIB * GIB + trained,
        _counted(counts[Kind.ENVIRONMENT], "environment actor"): counts[Kind.ENVIRONMENT] * PROCESS_GIB * GIB,
        "object store": needed_mib(parameters * BYTES[config.rollout.dtype]) * MIB,
    }
    if scorer.enabled:
        parts["scorer"] = PROCESS_GIB * GIB + (0 if scorer.num_gpus > 0 else parameters * BYTES[scorer.dtype])
    return parts


def _counted(count: int, name: str) -> str:
    return f"{count} {name}{'s' if count > 1 else ''}"
