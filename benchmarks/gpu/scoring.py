"""Cross-scoring: 64 prompts of 1,000 tokens x 8 reasonings of 200 (32,768 pairs), and peak memory against the estimate.

The shape is that of Qwen2.5-0.5B, weights are random, in bfloat16. A quarter of the prompts is scored first, so that a
slow machine gives a metric too; the whole matrix follows if the time left suffices. Operations are those of matrix
products and attention (`benchmarks.cross_scoring.work.Operations`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from transformers import PreTrainedModel

from benchmarks.cross_scoring.work import Operations, random_policy, random_rows
from benchmarks.gpu.common import GIB, QWEN, Setting, shape_of, share_of_peak
from squelch.actors.config import ScorerConfig
from squelch.actors.model_counts import model_size
from squelch.actors.scorer import memory
from squelch.kit.scoring.cross_scoring import CrossScorer

SAMPLES = 8
TOKEN_BUDGET = 16_384


def measure(setting: Setting) -> Iterator[dict[str, Any]]:
    """A quarter of the prompts, then all of them."""
    prompts, prompt, reasoning = (8, 40, 9) if setting.quick else (64, 1000, 200)
    config = shape_of(QWEN, setting.quick)
    setting.forget_peak()
    policy: Any = random_policy(config)  # transformers' annotation of `to` is not that of a method
    model: PreTrainedModel = policy.to(setting.device, torch.bfloat16)
    scorer, operations = CrossScorer(model, TOKEN_BUDGET), Operations.of(model)
    columns = random_rows(prompts, prompt, config.vocab_size, 4)
    reasonings = random_rows(prompts * SAMPLES, reasoning, config.vocab_size, 5)
    scorer.matrix(columns[:1], reasonings[:SAMPLES])  # the first call includes set-up

    def scored(count: int) -> dict[str, Any]:
        own = reasonings[: count * SAMPLES]
        start = time.perf_counter()
        scorer.matrix(columns[:count], own)
        setting.synchronize()
        seconds = time.perf_counter() - start
        rate = count * len(own) * operations.engine(prompt, reasoning, len(own)) / seconds
        row = {"pairs": count * len(own), "seconds": seconds, "tflops_per_second": rate / 1e12}
        return row | {"share_of_peak": share_of_peak(rate, setting)}

    part = scored(prompts // 4)
    yield {f"{prompts // 4} x {SAMPLES}": part}
    size = model_size(model)
    settings = ScorerConfig(
        num_gpus=1.0 if setting.device == "cuda" else 0.0, dtype="bfloat16", token_budget=TOKEN_BUDGET
    )
    estimate, peak = (memory.estimate(size, settings) - memory.RUNTIME) / GIB, setting.peak_gib()
    yield {"peak_gib": peak, "estimate_gib": estimate, "peak_of_estimate": None if peak is None else peak / estimate}
    expected_s = part["seconds"] * 16
    if expected_s > setting.left_s():
        yield {f"{prompts} x {SAMPLES}": {"skipped": f"{expected_s:.0f} s expected, {setting.left_s():.0f} s left"}}
        return
    yield {f"{prompts} x {SAMPLES}": scored(prompts)}
