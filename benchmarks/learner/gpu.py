"""Measures the share of a GPU's peak that one training step of the learner reaches.

    python -m benchmarks.learner.gpu [--quick] [--json] [--device cuda] [--compile]

The model has the shape of Qwen2.5-0.5B and random weights, in bfloat16 with float32 masters. The step has eight groups
of 16, whose packed layout is 16,384 tokens (prompts of 256 tokens, answers of 113), one micro-batch and one optimizer
step: forward pass, backward pass, clipping and AdamW, as in `Trainer.train_step` of a run. The first steps
(compilation, allocation) are left out; the figures are those of the median step.

Model FLOPs are those of the matrix products that the packed step needs (`benchmarks.learner.work.operations`), with the
head at sampled tokens only and without recomputation. The peaks are those in `benchmarks.common.GPU_PEAKS`. `--quick`
uses a tiny shape. With `--device cpu` the benchmark runs on any machine, and then only the device differs from a run on
a GPU. The benchmark was never run on a GPU.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig, Qwen2ForCausalLM
from transformers.utils import logging as hf_logging

from benchmarks import common
from benchmarks.learner import work as learner_work
from learner import process_group
from learner.config import LearnerConfig
from learner.shapes import published
from learner.trainer import Trainer

TARGET = 0.25
GROUP_SIZE = 16
WARM_UP = 3
STEP_TIMEOUT_S = 600


@dataclass(frozen=True)
class Work:
    """The step's groups. `answer`: number of sampled tokens, of which the last is not fed."""

    shape: str
    num_groups: int
    prompt: int
    answer: int
    steps: int

    @property
    def tokens(self) -> int:
        """Number of tokens in the packed layout."""
        return self.num_groups * (self.prompt + GROUP_SIZE * (self.answer - 1))


WHOLE = Work("Qwen2.5-0.5B", num_groups=8, prompt=256, answer=113, steps=10)
QUICK = Work("tiny", num_groups=2, prompt=64, answer=13, steps=2)


def config_of(shape: str) -> PreTrainedConfig:
    """The configuration of a published shape, or of `tiny`."""
    if shape != "tiny":
        return published(shape)
    return common.small_qwen2(vocabulary=512, width=64, layers=2, hidden=192, heads=4)


def make_model(shape: str, folder: Path) -> PreTrainedConfig:
    """Writes random weights of the shape as a Hugging Face folder; returns the configuration."""
    config = config_of(shape)
    torch.manual_seed(0)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return config


def settings(work: Work, device: str, compiled: bool) -> LearnerConfig:
    """The learner's settings with a token budget for one micro-batch: packing bounds the tokens that a row adds, and
    the bound is a few tokens per row too high."""
    return LearnerConfig(
        num_gpus=1.0 if device == "cuda" else 0.0,
        dtype="bfloat16",
        minibatches=1,
        token_budget=2 * work.tokens,
        compile=compiled,
    )


def measure(work: Work, device: str, compiled: bool, folder: Path) -> dict[str, Any]:
    """The figures of the median step."""
    config = make_model(work.shape, folder)
    groups = learner_work.random_groups(work.num_groups, GROUP_SIZE, work.prompt, work.answer, config.vocab_size)
    trainer = Trainer(folder, settings(work, device, compiled))
    seconds = []
    for step in range(WARM_UP + work.steps):
        start = time.perf_counter()
        report = trainer.train_step(step, groups)
        seconds.append(time.perf_counter() - start)  # reporting the loss has synchronised the device
        if not report.updated:
            raise RuntimeError(f"step {step} was refused: {report.refused}")
    return figures(work, trainer, groups, statistics.median(seconds[WARM_UP:]), device)


def figures(work: Work, trainer: Trainer, groups: learner_work.Groups, step_s: float, device: str) -> dict[str, Any]:
    """The figures of a step that took `step_s` seconds."""
    card = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    tokens = learner_work.tokens_fed(trainer, groups, [0])
    operations = learner_work.operations(trainer, groups, 0, padded=False)
    best = common.peak_of(card)
    return {
        "shape": work.shape,
        "device": card,
        "tokens": tokens,
        "rows": work.num_groups * GROUP_SIZE,
        "step_s": step_s,
        "tokens_per_second": tokens / step_s,
        "model_tflops": operations / 1e12,
        "model_tflops_per_second": operations / step_s / 1e12,
        "share_of_peak": None if best is None else operations / step_s / best,
        "peak_memory_gib": torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None,
        "target": TARGET,
    }


def notes(found: dict[str, Any]) -> list[str]:
    """The lines under the table."""
    share = found["share_of_peak"]
    if share is None:
        return [f"no peak is known for {found['device']}: no share of it"]
    verdict = "reached" if share >= TARGET else "NOT reached"
    return [f"{share:.1%} of the card's peak, wanted at least {TARGET:.0%}: {verdict}"]


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the figures; returns 0, or 2 if there is no CUDA device."""
    parser = argparse.ArgumentParser(prog="benchmarks.learner.gpu", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tiny shape and two steps")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="where to run")
    parser.add_argument("--compile", action="store_true", help="with learner.compile")
    arguments = parser.parse_args(argv)
    if arguments.device == "cuda" and not torch.cuda.is_available():
        sys.stderr.write("learner_gpu: no CUDA device here; --device cpu --quick shows that all but the device works\n")
        return 2
    hf_logging.disable_progress_bar()
    process_group.start(0, 1, "127.0.0.1", 0, STEP_TIMEOUT_S, arguments.device)
    work = QUICK if arguments.quick else WHOLE
    with tempfile.TemporaryDirectory() as folder:
        found = measure(work, arguments.device, arguments.compile, Path(folder))
    process_group.stop()
    rows = [[name, value] for name, value in found.items() if value is not None]
    common.print_figures(found, arguments.json, ("figure", "value"), rows, notes(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
