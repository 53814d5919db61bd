"""Measures how many rows a second the checks of a run's files read, and their peak memory.

    python -m benchmarks.check [--quick] [--json]

The rows are slime's as JSON Lines: 1,000 token ids with a log-probability each and a mask of the loss, groups of 8. No
weights and no tokenizer are given, so that nothing is decoded or scored. The target is 100,000 rows in a minute of CPU;
`--quick` reads 2,000 rows, otherwise 20,000. Peak memory is that of this process.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common import arguments, print_metrics
from squelch.kit.checks.run import checked
from squelch.kit.readers.step_views import StepViews

TOKENS, GROUP = 1000, 8
TARGET = 100_000 / 60
"""Rows per second of CPU."""


def write(path: Path, rows: int) -> None:
    """Writes a healthy run of some rows, 64 groups a step."""
    rng = random.Random(0)
    with path.open("w") as out:
        for number in range(rows):
            group = number // GROUP
            prompt, said = [1, group % 50_000, 9], [rng.randrange(100, 50_000) for _ in range(TOKENS - 4)]
            row = {
                "group_index": group,
                "index": number,
                "prompt": f"problem {group}",
                "tokens": [*prompt, *said, 7],
                "response": f"answer {number}",
                "response_length": len(said) + 1,
                "reward": float(rng.random() < 0.5),
                "loss_mask": [1] * (len(said) + 1),
                "weight_versions": [str(group // 64)],
                "rollout_log_probs": [-rng.expovariate(1.0) for _ in range(len(said) + 1)],
                "status": "completed",
                "rollout_id": group // 64,
            }
            out.write(json.dumps(row) + "\n")


def measure(rows: int) -> dict[str, float | bool]:
    """Rows per second of CPU and of the clock, and MiB."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rollout_0.jsonl"
        write(path, rows)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        started, cpu = time.perf_counter(), time.process_time()
        result = checked(path, views=StepViews())
        seconds, busy = time.perf_counter() - started, time.process_time() - cpu
        size = path.stat().st_size / 2**20
    assert result.rows == rows and not result.faults
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "rows": rows,
        "rows_per_cpu_s": rows / busy,
        "rows_per_s": rows / seconds,
        "file_mib": size,
        "memory_before_mib": before,
        "peak_memory_mib": peak,
        "target_rows_per_cpu_s": TARGET,
        "reached": rows / busy >= TARGET,
    }


def main() -> int:
    """Prints the metrics; returns 1 if the target was missed, else 0."""
    options = arguments(__doc__, "2,000 rows instead of 20,000")
    found = measure(2_000 if options.quick else 20_000)
    print_metrics(found, options.json, ("metric", "value"), list(found.items()), ())
    return 0 if found["reached"] else 1


if __name__ == "__main__":
    sys.exit(main())
