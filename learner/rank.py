"""What a learner rank does with torch, in the rank's own process; `learner.actor` calls it without importing torch."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as hf_logging

from squelch.actors.messages import GroupMember, WeightBundle
from squelch.actors.weight_group import WeightGroup
from squelch.learner import process_group
from squelch.learner import publish as publication
from squelch.learner.config import LearnerConfig
from squelch.learner.network import Place
from squelch.learner.trainer import Trainer

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
"""Types in which weights are published, by the name in `rollout.dtype`; any other name publishes float32."""


def start(
    model_dir: Path | str,
    config: LearnerConfig,
    rank: int,
    places: Sequence[Place],
    listener: socket.socket,
    seed: int,
    temperature: float,
) -> Trainer:
    """Joins the process group and loads the model.

    Args:
        places: of all ranks.
        listener: this rank's socket at `places[rank].store_port`, which only rank 0 needs.
    """
    torch.set_num_threads(config.num_threads)
    hf_logging.disable_progress_bar()
    if rank > 0 or len(places) == 1:
        listener.close()
    first, device = places[0], "cuda" if config.num_gpus > 0 else "cpu"
    world = (rank, len(places), first.address, first.store_port, config.step_timeout_s, device)
    process_group.start(*world, places[rank].address, listener)
    return Trainer(model_dir, config, rank, len(places), seed, temperature)


def join_group(trainer: Trainer, member: GroupMember, listener: socket.socket) -> WeightGroup | str:
    """Rank 0's end of a new weight group, or the reason why the group was not formed."""
    try:
        return WeightGroup(member, trainer.device, listener)
    except RuntimeError as error:
        return str(error)


def send(trainer: Trainer, group: WeightGroup | None, dtype: str) -> str:
    """Broadcasts the weights; see `learner.publish.send`."""
    return publication.send(trainer.policy, group, DTYPES.get(dtype, torch.float32))


def publish(trainer: Trainer, version: int, put: Callable[[Any], Any], dtype: str) -> WeightBundle | None:
    """The weights as `version` in `dtype`, stored by `put` on rank 0; other ranks return None."""
    return trainer.publish(version, put, DTYPES.get(dtype, torch.float32))
