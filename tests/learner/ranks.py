"""Runs a function on several learner ranks, each a process of its own with gloo between them."""

import multiprocessing
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing

from squelch.learner import process_group
from squelch.learner.config import LearnerConfig
from squelch.learner.trainer import Trainer

Work = Callable[[Trainer, Path], None]
"""What each rank does with its trainer; files go into the folder. Has to be importable."""

TIMEOUT_S = 180.0


def run_ranks(
    world_size: int, model_dir: Path, config: LearnerConfig, work: Work, folder: Path, **settings: Any
) -> None:
    """Run `work` on `world_size` new processes and wait for all; an exception in one is raised here.

    `settings`: other arguments of each trainer.
    """
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    arguments = (world_size, port, model_dir, config, work, folder, settings)
    multiprocessing.set_forkserver_preload(["squelch.learner.trainer"])  # imported once for all ranks of all tests
    torch.multiprocessing.start_processes(_rank, arguments, nprocs=world_size, join=True, start_method="forkserver")


def _rank(
    rank: int,
    world_size: int,
    port: int,
    model_dir: Path,
    config: LearnerConfig,
    work: Work,
    out: Path,
    settings: dict[str, Any],
) -> None:
    torch.set_num_threads(config.num_threads)
    process_group.start(rank, world_size, "127.0.0.1", port, TIMEOUT_S, "cpu")
    work(Trainer(model_dir, config, rank, world_size, **settings), out)
    process_group.stop()
