"""Estimates the memory that the scorer needs, from the model's size and the bounds of its batches."""

from __future__ import annotations

from squelch.actors.config import ScorerConfig
from squelch.actors.model_size import BYTES, ModelSize
from squelch.kit.scoring.cross_scoring import CPU_TOKENS, MAX_LOGITS
from squelch.kit.scoring.prefix_attention import MAX_SCORES

GIB = 2**30
COPIES = 3
"""Float32 copies of logits and of attention's scores at once."""
RUNTIME = GIB
"""Bytes of libraries and contexts: an allowance, not counted."""


def estimate(size: ModelSize, scorer: ScorerConfig) -> int:
    """Bytes of weights, one batch, its keys and values, and the runtime. A packed pass holds no keys and values beyond
    a layer's, and takes less."""
    width = BYTES[scorer.dtype]
    device = "cuda" if scorer.num_gpus > 0 else "cpu"
    tokens = scorer.token_budget if device == "cuda" else min(scorer.token_budget, CPU_TOKENS)
    batch = tokens * width * (6 * size.hidden + 3 * size.intermediate) + 2 * tokens * size.cache_bytes(width)
    return size.parameters * width + batch + COPIES * 4 * (MAX_LOGITS[device] + MAX_SCORES[device]) + RUNTIME


def advice(size: ModelSize, scorer: ScorerConfig, has: int) -> str:
    """Settings with which the scorer fits into `has` bytes, as text; empty if it fits."""
    tried: dict[str, object] = {}
    for option in ({}, {"dtype": "bfloat16"}, {"token_budget": max(64, scorer.token_budget // 4)}):
        tried |= {key: value for key, value in option.items() if vars(scorer)[key] != value}
        if estimate(size, scorer.model_copy(update=tried)) <= has:
            return "set " + " ".join(f"scorer.{key}={value}" for key, value in tried.items()) if tried else ""
    return "set scorer.enabled=false, and score checkpoints with `squelch score`"
