"""A training step of the learner: share of the GPU's peak, and peak memory against the estimate.

The model has random weights, in bfloat16 with float32 masters. The step has eight groups of 16, whose packed layout is
16,384 tokens (prompts of 256 tokens, answers of 113), one micro-batch and one optimizer step: forward pass, backward
pass, clipping and AdamW, as in `Trainer.train_step` of a run. The metrics are those of the median step after the first
three, the seconds by part those of the last step. Model FLOPs are those of the matrix products that the packed step
needs (`benchmarks.learner.random_work.operations`), with the head at sampled tokens only and without recomputation.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedConfig

from benchmarks.gpu.common import GIB, QWEN, SMOLLM, Setting, alone, shape_of, share_of_peak, steps_of, write_model
from benchmarks.learner import random_work
from squelch.learner import memory
from squelch.learner.config import LearnerConfig
from squelch.learner.trainer import Trainer

TARGET = 0.25
"""Wanted share of the peak at the shape of Qwen2.5-0.5B."""
HOST_GIB = 64.0
"""On CPU the trainer is given its memory, because it would need psutil to find out."""
GROUP_SIZE = 16
WARM_UP = 3


@dataclass(frozen=True)
class Work:
    """The step's groups. `answer`: number of sampled tokens, of which the last is not fed."""

    num_groups: int
    prompt: int
    answer: int
    steps: int

    @property
    def tokens(self) -> int:
        """Number of tokens in the packed layout."""
        return self.num_groups * (self.prompt + GROUP_SIZE * (self.answer - 1))


WHOLE = Work(num_groups=8, prompt=256, answer=113, steps=10)
QUICK = Work(num_groups=2, prompt=64, answer=13, steps=2)


def settings(work: Work, device: str, **others: Any) -> LearnerConfig:
    """The learner's settings, with a token budget for one micro-batch: packing bounds the tokens that a row adds, and
    the bound is a few tokens per row too high."""
    given = {
        "num_gpus": 1.0 if device == "cuda" else 0.0,
        "dtype": "bfloat16",
        "minibatches": 1,
        "token_budget": 2 * work.tokens,
        "max_memory_gib": HOST_GIB if device == "cpu" else None,
    }
    return LearnerConfig.model_validate(given | others)


def qwen(setting: Setting) -> Iterator[dict[str, Any]]:
    """At the shape of Qwen2.5-0.5B."""
    yield from measure(setting, QWEN)


def smollm(setting: Setting) -> Iterator[dict[str, Any]]:
    """At the shape of SmolLM2-135M."""
    yield from measure(setting, SMOLLM)


def compiled(setting: Setting) -> Iterator[dict[str, Any]]:
    """At the shape of Qwen2.5-0.5B, with `learner.compile`."""
    yield from measure(setting, QWEN, compile=True)


def measure(setting: Setting, shape: str, **others: Any) -> Iterator[dict[str, Any]]:
    """Figures as they become known: the first step, then the median of the later ones, then memory."""
    work = QUICK if setting.quick else WHOLE
    config = shape_of(shape, setting.quick)
    model = write_model(config, setting.folder / "model")
    groups = random_work.random_groups(work.num_groups, GROUP_SIZE, work.prompt, work.answer, config.vocab_size)
    alone(setting.device)
    setting.forget_peak()
    learner = settings(work, setting.device, **others)
    trainer = Trainer(model, learner)
    yield {"shape": shape, "tokens": random_work.tokens_fed(trainer, groups), "rows": work.num_groups * GROUP_SIZE}
    seconds, parts = [], {}  # of every step, and of the last one by part
    for step_s, report in steps_of(trainer, groups, WARM_UP + work.steps):
        if not seconds:
            yield {"first_step_s": step_s, "entropy_nats": report.metrics["entropy"]}
        seconds.append(step_s)
        parts = {name: value for name, value in report.seconds.items() if value > 0}
    yield speed(setting, trainer, groups, statistics.median(seconds[WARM_UP:])) | {"seconds_by_part": parts}
    yield against_estimate(setting, config, learner, work.tokens)


def against_estimate(
    setting: Setting, config: PreTrainedConfig, learner: LearnerConfig, tokens: int, before_gib: float = 0.0
) -> dict[str, Any]:
    """The peak since `Setting.forget_peak`, less `before_gib`, and its estimate for micro-batches of `tokens`
    tokens."""
    fed = learner.model_copy(update={"token_budget": tokens})
    estimate, peak = memory.estimate(config, fed, 1).total / GIB, setting.peak_gib()
    if peak is None:
        return {"estimate_gib": estimate}
    peak -= before_gib
    return {"estimate_gib": estimate, "peak_gib": peak, "peak_of_estimate": peak / estimate}


def speed(setting: Setting, trainer: Trainer, groups: random_work.Groups, step_s: float) -> dict[str, Any]:
    """The metrics of a step that took `step_s` seconds."""
    operations = random_work.operations(trainer, groups, 0, padded=False)
    return {
        "step_s": step_s,
        "tokens_per_second": random_work.tokens_fed(trainer, groups) / step_s,
        "model_tflops": operations / 1e12,
        "model_tflops_per_second": operations / step_s / 1e12,
        "share_of_peak": share_of_peak(operations / step_s, setting),
        "wanted_share": TARGET,
    }
