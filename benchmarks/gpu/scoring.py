"""Cross-scoring: 64 prompts of 1,000 tokens x 8 reasonings of 200 (32,768 pairs), and peak memory against the estimate.

The shape is that of Qwen2.5-0.5B, weights are random, in bfloat16. A quarter of the prompts is scored first, so that a
slow machine gives a metric too; the whole matrix follows if the time left suffices. Operations are those of matrix
products and attention (`benchmarks.cross_scoring.work.Operations`).

Before that, a scorer step under a budget of pairs, whose prompts fill no pass alone: 52 prompts, about 18 reasonings
under each, scored one prompt a pass (the old way) and packed in turn, and with the choice that the scorer makes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from benchmarks.cross_scoring.work import Operations, random_policy, random_rows
from benchmarks.gpu.common import GIB, QWEN, Setting, shape_of, share_of_peak
from squelch.actors.config import ScorerConfig
from squelch.actors.model_counts import model_size
from squelch.actors.scorer import memory
from squelch.kit.diagnosis.pair_budget import draw_pairs
from squelch.kit.scoring.cross_scoring import CrossScorer, Ways

SAMPLES = 8
TOKEN_BUDGET = 16_384
COLUMNS, OTHERS, TURNS = 52, 1, 3
"""A scorer step under a budget: its prompts, the other prompts of each reasoning, and the times that it is scored."""


def measure(setting: Setting) -> Iterator[dict[str, Any]]:
    """A quarter of the prompts, then all of them."""
    prompts, prompt, reasoning = (8, 40, 9) if setting.quick else (64, 1000, 200)
    config = shape_of(QWEN, setting.quick)
    setting.forget_peak()
    policy: Any = random_policy(config)  # transformers' annotation of `to` is not that of a method
    model: PreTrainedModel = policy.to(setting.device, torch.bfloat16)
    scorer, operations = CrossScorer(model, TOKEN_BUDGET), Operations.of(model)
    pairs = COLUMNS * SAMPLES * (1 + OTHERS)
    yield {f"{COLUMNS} prompts, {pairs} pairs": _in_turn(setting, scorer, prompt // 5, reasoning)}
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


def _in_turn(setting: Setting, scorer: CrossScorer, prompt: int, reasoning: int) -> dict[str, Any]:
    """For each way the median seconds of a scorer step, its passes and tokens, and the measured cost of a pass and of a
    token; and how far the scores of packed prompts are from those of the old way."""
    vocabulary = scorer.model.config.vocab_size
    prompts = random_rows(COLUMNS, prompt, vocabulary, 6)
    reasonings = random_rows(COLUMNS * SAMPLES, reasoning, vocabulary, 7)
    wanted = draw_pairs(np.repeat(np.arange(COLUMNS), SAMPLES), COLUMNS, OTHERS, (8,))
    ways: tuple[Ways, ...] = ("measured", "one", "packed")
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    rows: dict[str, Any] = {}
    found = {}
    for turn in range(TURNS + 1):
        for way in ways:
            scorer.columns = way
            before, start = (scorer.num_passes, scorer.num_forwarded), time.perf_counter()
            found[way] = scorer.matrix(prompts, reasonings, wanted)
            setting.synchronize()
            if turn:  # the first compiles and measures
                seconds[way].append(time.perf_counter() - start)
            a_pass, a_token = scorer.costs[scorer.way].each
            rows[way] = {"passes": scorer.num_passes - before[0], "tokens": scorer.num_forwarded - before[1]}
            rows[way] |= {"way": scorer.way, "pass_seconds": a_pass, "token_seconds": a_token}
    scorer.columns = "one"
    for way in ways:
        rows[way]["seconds"] = float(np.median(seconds[way]))
    off = float(np.nanmax(np.abs(found["one"] - found["packed"])))
    return rows | {"largest_difference_nats_per_token": off / reasoning}
