"""Measures a training step of the learner packed and padded, and compares their ratio with that of counted operations.

    python -m benchmarks.learner [--threads 2] [--quick] [--json]

All metrics are of one rank in this process, in CPU seconds of all its threads, best of the steps after the first. The
two forms alternate. A packed step is compared with the same step padded to the longest row with causal SDPA and a mask,
through transformers' own modules as in TRL and the paper's authors' code. `floor` is the ratio of the counted
operations of both. Inputs are the demos' tokens and single-turn groups of 16. Models are random; the arithmetic does
not depend on their weights.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as hf_logging

from benchmarks.common import parser_of, print_metrics, restart_with
from benchmarks.learner import random_work
from benchmarks.learner import work as learner_work
from squelch.learner import process_group
from squelch.learner.config import LearnerConfig
from squelch.learner.process_environment import ENVIRONMENT
from squelch.learner.trainer import Trainer

GROUP_SIZE = 16
LAYOUTS: dict[str, tuple[int, int] | None] = {
    "frozenlake": None,
    "sokoban": None,
    **{f"{prompt} + {answer}": (prompt, answer) for prompt in (20, 150, 600) for answer in (30, 60)},
}
QUICK_LAYOUTS = ("frozenlake", "150 + 30")
COLUMNS = ("layout", "packed", "padded", "floor", "ratio", "reached")


def cpu_seconds(action: Callable[[], Any]) -> float:
    """CPU seconds of this process during the action."""
    start = time.process_time()
    action()
    return time.process_time() - start


def measure_layout(name: str, folder: Path, steps: int, threads: int) -> dict[str, float]:
    """CPU seconds of a step packed and padded, their ratio, and its share of the floor."""
    shape = LAYOUTS[name]
    if shape is None:
        groups, minibatches = learner_work.demonstrated(name, 8, GROUP_SIZE, folder), 4
    else:
        groups, minibatches = learner_work.single_turn(4, GROUP_SIZE, *shape, folder), 1
    settings = {"num_threads": threads, "minibatches": minibatches}
    plain = LearnerConfig(**settings, share_openings=False)
    variants = {
        "packed": Trainer(folder, LearnerConfig(**settings)),
        "padded": learner_work.PaddedTrainer(folder, plain),
    }
    seconds: dict[str, list[float]] = {variant: [] for variant in variants}
    for step in range(steps + 1):
        for variant, trainer in variants.items():
            seconds[variant].append(cpu_seconds(lambda t=trainer, s=step: t.train_step(s, groups)))
    found = {variant: min(values[1:]) for variant, values in seconds.items()}
    counted = {variant: random_work.operations(t, groups, 0, variant != "packed") for variant, t in variants.items()}
    floor = counted["padded"] / counted["packed"]
    ratio = found["padded"] / found["packed"]
    return {**found, "floor": floor, "ratio": ratio, "reached": ratio / floor}


def main() -> int:
    """Prints the metrics; returns the exit code."""
    parser = parser_of(__doc__, "two layouts, one measured step of each")
    parser.add_argument("--threads", type=int, default=2, help="torch threads")
    chosen = parser.parse_args()
    restart_with(ENVIRONMENT, "benchmarks.learner", None)
    names, steps = (QUICK_LAYOUTS, 1) if chosen.quick else (tuple(LAYOUTS), 5)
    torch.set_num_threads(chosen.threads)
    hf_logging.disable_progress_bar()
    process_group.start(0, 1, "127.0.0.1", 0, 600, "cpu")
    with tempfile.TemporaryDirectory() as folder:
        layouts = {name: measure_layout(name, Path(folder) / name, steps, chosen.threads) for name in names}
    process_group.stop()
    metrics = {"layouts": layouts, "threads": chosen.threads}
    rows = [[name, *(found[column] for column in COLUMNS[1:])] for name, found in layouts.items()]
    print_metrics(metrics, chosen.json, COLUMNS, rows, ())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
