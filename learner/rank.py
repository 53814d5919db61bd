"""What a learner rank does with torch, in the rank's own process; `learner.actor` calls it without importing torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as hf_logging

from actors.messages import WeightBundle
from learner import process_group
from learner.config import LearnerConfig
from learner.trainer import Trainer

DTYPES = {"bfloat16": torch.bfloat16}
"""Types in which weights are published, by the name in `rollout.dtype`; any other name publishes float32."""


def start(
    model_dir: Path | str, config: LearnerConfig, place: tuple[int, int, str, int], seed: int, temperature: float
) -> Trainer:
    """Joins the process group and loads the model.

    Args:
        place: (rank, number of ranks, address and port of rank 0).
    """
    torch.set_num_threads(config.num_threads)
    hf_logging.disable_progress_bar()
    rank, world_size, address, port = place
    device = "cuda" if config.num_gpus > 0 else "cpu"
    process_group.start(rank, world_size, address, port, config.step_timeout_s, device)
    return Trainer(model_dir, config, rank, world_size, seed, temperature)


def publish(trainer: Trainer, version: int, put: Callable[[Any], Any], dtype: str) -> WeightBundle | None:
    """The weights as `version` in `dtype`, stored by `put` on rank 0; other ranks return None."""
    return trainer.publish(version, put, DTYPES.get(dtype, torch.float32))
