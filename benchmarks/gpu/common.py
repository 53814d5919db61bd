"""Code that the parts share: the machine, the models with random weights, the process group of one, timing.

Imports torch, transformers and numpy only.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, PreTrainedConfig

from squelch.actors.gpus.peaks import peak_of
from squelch.learner.model_shapes import published

if TYPE_CHECKING:
    from benchmarks.learner.random_work import Groups
    from squelch.actors.messages import StepReport
    from squelch.learner.trainer import Trainer

GIB = 2**30
QWEN, SMOLLM = "Qwen2.5-0.5B", "SmolLM2-135M"


@dataclass(frozen=True)
class Setting:
    """Where and how a part runs. `folder`: for models, empty at the start; `deadline`: `time.monotonic()` at which the
    part is stopped."""

    device: str
    quick: bool
    folder: Path
    deadline: float

    @property
    def gpu(self) -> str:
        """PyTorch's name of the GPU, or `cpu`."""
        return torch.cuda.get_device_name() if self.device == "cuda" else "cpu"

    def left_s(self) -> float:
        """Seconds until the part is stopped."""
        return self.deadline - time.monotonic()

    def synchronize(self) -> None:
        """Waits for the GPU's work."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def median_s(self, action: Callable[[], Any], repeats: int) -> float:
        """Median wall seconds of the action and the GPU work that it starts, after one unmeasured call."""
        seconds = []
        for _ in range(repeats + 1):
            self.synchronize()
            start = time.perf_counter()
            action()
            self.synchronize()
            seconds.append(time.perf_counter() - start)
        return statistics.median(seconds[1:])

    def forget_peak(self) -> None:
        """Frees what nobody uses, and starts a new measurement of the peak memory."""
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def peak_gib(self) -> float | None:
        """Peak of the tensors on the GPU since `forget_peak`; None on CPU."""
        return torch.cuda.max_memory_allocated() / GIB if self.device == "cuda" else None


def shape_of(name: str, quick: bool) -> PreTrainedConfig:
    """The configuration of a published shape; with `quick` a tiny one of the same architecture."""
    config = published(name)
    if not quick:
        return config
    head = 16
    shape: dict[str, Any] = config.to_dict() | {
        "vocab_size": 512,
        "hidden_size": head * config.num_attention_heads,
        "intermediate_size": 3 * head * config.num_attention_heads,
        "num_hidden_layers": 2,
        "head_dim": head,
        "layer_types": None,
    }
    return type(config)(**shape)


def write_model(config: PreTrainedConfig, folder: Path) -> Path:
    """Writes random float32 weights of the shape as a Hugging Face folder."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def alone(device: str) -> None:
    """This process as the only learner rank. `learner.process_group` would need psutil for the same group."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
    if device == "cuda":
        torch.cuda.set_device(0)
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)


def steps_of(trainer: Trainer, groups: Groups, count: int) -> Iterator[tuple[float, StepReport]]:
    """Seconds and report of each training step, whose loss synchronises the device. RuntimeError if one is refused."""
    for step in range(count):
        start = time.perf_counter()
        report = trainer.train_step(step, groups)
        seconds = time.perf_counter() - start
        if not report.updated:
            raise RuntimeError(f"step {step} was refused: {report.refused}")
        yield seconds, report


def share_of_peak(operations_per_second: float, setting: Setting) -> float | None:
    """Share of the GPU's dense bfloat16 peak; None for an unknown GPU."""
    peak = peak_of(setting.gpu)
    return None if peak is None else operations_per_second / peak
