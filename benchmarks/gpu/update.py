"""The update of a whole step alone, without Ray and an engine: 32 prompts of 250 tokens x 8 answers of 257.

Each case is a learner of its own in the same process, at the shape of Qwen2.5-0.5B in bfloat16: the token budgets that
a GPU may hold, compiled layers, recomputed activations, several minibatches. A case that does not fit is recorded with
its reason, and the others go on. Seconds are the medians of the steps after the first two.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import torch
from torch._dynamo.utils import counters

from benchmarks.gpu.common import QWEN, Setting, alone, shape_of, share_of_peak, steps_of, write_model
from benchmarks.gpu.step import QUICK, settings
from benchmarks.learner import random_work
from squelch.learner.trainer import Trainer

PROMPTS, SAMPLES, PROMPT, ANSWER, STEPS, WARM_UP = 32, 8, 250, 257, 4, 2
CASES: dict[str, dict[str, Any]] = {
    "16k tokens": {},
    "32k tokens": {"token_budget": 32768},
    "64k tokens": {"token_budget": 65536},
    "32k tokens, compiled": {"token_budget": 32768, "compile": True},
    "64k tokens, compiled": {"token_budget": 65536, "compile": True},
    "4 minibatches": {"minibatches": 4},
    "recomputed activations": {"activation_checkpointing": True},
}


def measure(setting: Setting) -> Iterator[dict[str, Any]]:
    """One row for each case, while there is time."""
    quick = setting.quick
    shape = (2, 2, 20, 9) if quick else (PROMPTS, SAMPLES, PROMPT, ANSWER)
    config = shape_of(QWEN, quick)
    model = write_model(config, setting.folder / "model")
    groups = random_work.random_groups(*shape, config.vocab_size)
    alone(setting.device)
    for name, case in CASES.items():
        try:
            counters.clear()
            learner = settings(QUICK, setting.device, **{"token_budget": 16384} | case)
            yield {name: case_of(setting, Trainer(model, learner), groups) | _compiled(case)}
        except (ValueError, torch.cuda.OutOfMemoryError) as error:  # the estimate, or the GPU, refuses it
            yield {name: {"skipped": str(error)[:500]}}


def _compiled(case: dict[str, Any]) -> dict[str, Any]:
    """With compiled layers: new graphs, also of kernels, and the reasons for which a layer became several."""
    if not case.get("compile"):
        return {}
    broken = {reason.partition("\n")[0]: number for reason, number in counters["graph_break"].items()}
    return {"graphs": counters["stats"]["unique_graphs"], "graph_breaks": broken}


def case_of(setting: Setting, trainer: Trainer, groups: random_work.Groups) -> dict[str, Any]:
    """Seconds, share of the peak and memory of a learner's step."""
    setting.forget_peak()
    seconds, reports = zip(*steps_of(trainer, groups, WARM_UP + (1 if setting.quick else STEPS)), strict=True)
    step_s, report = statistics.median(seconds[WARM_UP:]), reports[-1]
    done = report.operations
    assert done is not None, "every step was updated"
    return {
        "step_s": step_s,
        "first_step_s": seconds[0],
        "products_share_of_peak": share_of_peak(done.products / step_s, setting),
        "share_of_peak": share_of_peak((done.products + done.attention) / step_s, setting),
        "tokens_per_second": report.num_tokens / step_s,
        "peak_gib": setting.peak_gib(),
        "seconds_by_part": {name: value for name, value in report.seconds.items() if value > 0},
    }
