"""Estimates the memory that a rollout worker's engine needs on each of its devices, from the model's size. Pure.

vLLM takes `memory_share` of a GPU. What weights and working memory leave of it becomes the cache of keys and values, so
the question is how many sequences of `max_model_len` tokens that cache holds. On CPU, and on a GPU where it is set, the
cache has `cache_gib` instead. The working memory is counted for the largest batch that the engine profiles at its
start; `RUNTIME` is an allowance, not counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from squelch.actors.config import RolloutConfig
from squelch.actors.model_size import BYTES, ModelSize

GIB = 2**30
PRIMITIVES = 1024
"""Primitives that oneDNN keeps in an engine's process on a CPU. It makes one, of 0.6 MiB of machine code and what goes
with it, for each number of tokens in a batch and each shape of a weight, so that an engine grows until it has so many
(docs/research/results.md). A lower number costs time: making one takes 0.8 ms, and the engine decodes with every number
of tokens up to that of its requests."""
RUNTIME = {True: 3 * GIB // 2, False: 5 * GIB // 2}
"""Bytes of libraries, contexts and CUDA graphs, by whether the engine is on a GPU. On a CPU the libraries of two
processes count, the worker's and the engine's: 1.6 to 1.8 GiB were measured, with what was used of the cache
(`benchmarks.memory`); and `PRIMITIVES`."""
BATCHED_TOKENS = 8192
"""Tokens of the engine's largest batch, unless `max_model_len` is larger."""
LOGIT_COPIES = 3
"""Float32 copies of the logits of a batch while it is sampled from."""
MAX_SPLIT = 8
"""GPUs of a node, over which a model is split at most."""


@dataclass(frozen=True)
class EngineEstimate:
    """Bytes on each device of one engine. `sequence`: keys and values of a sequence of `max_model_len` tokens."""

    weights: int
    working: int
    runtime: int
    sequence: int

    @property
    def fixed(self) -> int:
        """Everything but the cache."""
        return self.weights + self.working + self.runtime

    def room(self, has: int, rollout: RolloutConfig) -> float:
        """Bytes that a cache may have on a device with `has` bytes: 0 or less if there is no room, on CPU any."""
        return rollout.memory_share * has - self.fixed if rollout.num_gpus > 0 else math.inf

    def sequences(self, has: int, rollout: RolloutConfig) -> int:
        """Whole sequences that the cache holds on a device with `has` bytes; 0 or less if the engine cannot start."""
        room = self.room(has, rollout)
        cache = room if rollout.cache_gib is None else rollout.cache_gib * GIB
        return int(cache) // self.sequence if cache <= room else 0


def estimate(size: ModelSize, rollout: RolloutConfig) -> EngineEstimate:
    """The estimate for an engine with these settings."""
    width, split = BYTES[rollout.dtype], rollout.tensor_parallel_size
    tokens = max(BATCHED_TOKENS, rollout.max_model_len)
    hidden = tokens * width * (4 * size.hidden + (size.heads * size.head_size + 3 * size.intermediate) // split)
    logits = LOGIT_COPIES * 4 * min(rollout.max_num_seqs, tokens) * size.vocabulary
    return EngineEstimate(
        weights=size.parameters * width // split,
        working=hidden + logits,
        runtime=RUNTIME[rollout.num_gpus > 0],
        sequence=max(1, rollout.max_model_len * size.cache_bytes(width) // split),
    )


def advice(size: ModelSize, rollout: RolloutConfig, has: int) -> str:
    """Settings with which a sequence fits in a cache of any size, as text; empty if one fits already."""
    rollout = rollout.model_copy(update={"kv_cache_gib": None})
    if estimate(size, rollout).sequences(has, rollout) >= 1:
        return ""
    for options in _options(rollout):
        changed = rollout.model_copy(update=options)
        if estimate(size, changed).sequences(has, changed) >= 1:
            return "set " + " ".join(f"rollout.{key}={value}" for key, value in options.items())
    return "take a smaller model, or larger devices"


def _options(rollout: RolloutConfig) -> Iterator[Mapping[str, object]]:
    narrow: dict[str, object] = {"dtype": "bfloat16"} if rollout.dtype == "float32" else {}
    if narrow:
        yield narrow
    split = 2 * rollout.tensor_parallel_size
    while split <= MAX_SPLIT:
        yield {**narrow, "tensor_parallel_size": split, "num_gpus": split}
        split *= 2
