"""Measures the peak memory of one learner step in its own process, for `tests/learner/test_memory.py`.

    python -m tests.learner.memory_worker '{"budget": 2048, "groups": 4, ...}'

Prints one JSON object. `peak_mib`: the step's peak above the memory before it, which includes weights and optimizer
state; `whole_mib`: the peak above the memory before the learner was created; `estimate_mib`: the estimate of
`learner.memory` for `whole_mib`; `matrix_mib`: size of the output matrix. The C library is set to return freed memory
at once, so that the numbers do not depend on the allocator's caching.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

GIVE_BACK = {"MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TOP_PAD_": "0"}
TIMEOUT_S = 300.0


def measure(**case: Any) -> dict[str, float]:
    """The step's memory, from a new process.

    Args:
        case: `budget`, number of `groups` of 16, `prompt`, `answer`, `vocabulary`, and `learner`, its other settings.
    """
    command = [sys.executable, "-m", "tests.learner.memory_worker", json.dumps(case)]
    environment = {**os.environ, **GIVE_BACK, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"measuring {case} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def status(name: str) -> int:
    """A value of /proc/self/status, in bytes."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(name + ":"))
    return int(line.split()[1]) * 1024


def main() -> None:
    """Runs the case and prints its memory."""
    import torch

    from benchmarks import common
    from benchmarks.learner.random_work import random_groups
    from benchmarks.learner.work import LAYERS
    from squelch.kit.models.model_folder import model_config
    from squelch.learner import memory, process_group
    from squelch.learner.config import LearnerConfig
    from squelch.learner.trainer import Trainer

    case: dict[str, Any] = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    process_group.start(0, 1, "127.0.0.1", 0, TIMEOUT_S, "cpu")
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        common.random_qwen2(model, vocabulary=case["vocabulary"], seed=0, **{**LAYERS, "width": 256, "hidden": 768})
        groups = random_groups(case["groups"], 16, case["prompt"], case["answer"], 512)
        config = LearnerConfig(token_budget=case["budget"], num_threads=1, **case.get("learner", {}))
        estimate = memory.estimate(model_config(model), config, 1).total
        # A step of another learner first: it allocates what libraries keep, such as threads and plans of products.
        Trainer(model, config).train_step(0, groups[:1])
        gc.collect()
        empty = status("VmRSS")
        trainer = Trainer(model, config)
        trainer.train_step(0, groups)
        Path("/proc/self/clear_refs").write_text("5")
        before = status("VmRSS")
        trainer.train_step(1, groups)
        peak = status("VmHWM")
    matrix = case["vocabulary"] * 256 * 4
    sizes = {"peak": peak - before, "whole": peak - empty, "estimate": estimate, "matrix": matrix}
    json.dump({f"{name}_mib": size / 2**20 for name, size in sizes.items()}, sys.stdout)


if __name__ == "__main__":
    main()
