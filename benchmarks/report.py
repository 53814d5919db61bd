"""Measures `squelch report`: seconds from the command to its end, CPU seconds, and the size of the page.

python -m benchmarks.report [--quick] [--json]

The runs are synthetic and record everything that a report can draw: one run of 400 steps, and a sweep of 4 arms with 3
seeds each. `--quick` measures the single run only.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import arguments, print_metrics
from squelch.kit.base.package import variables
from tests.cluster.report.synthetic import Made, write_run

STEPS, SEEDS = 400, 3
COLUMNS = ("runs", "seconds", "CPU seconds", "page, MB")


def write_runs(folder: Path, seeds: int) -> int:
    """Writes the runs of a sweep of 4 arms, or a single run if `seeds` is 0; returns their number."""
    rest = {"steps": STEPS, "gradients_every": 50}
    if not seeds:
        write_run(folder, Made("alone", **rest))
        return 1
    arms = [(rule, slip) for rule in ("none", "top_p") for slip in (0.02, 0.5)]
    for seed in range(seeds):
        for rule, slip in arms:
            write_run(folder, Made(f"{rule}-{slip}-{seed}", seed, rule, slip=slip, **rest))
    return seeds * len(arms)


def measure(seeds: int) -> dict[str, Any]:
    """Writes a report in a process of its own, as a user does."""
    with tempfile.TemporaryDirectory() as scratch:
        count = write_runs(Path(scratch), seeds)
        command = [sys.executable, "-P", "-m", "squelch.cluster.cli", "report", scratch]
        before, started = os.times(), time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=variables())
        seconds, after = time.perf_counter() - started, os.times()
        cpu = after.children_user + after.children_system - before.children_user - before.children_system
        size = (Path(scratch) / "report.html").stat().st_size
    return {"runs": count, "seconds": seconds, "cpu_seconds": cpu, "page_mb": size / 1e6}


def main() -> None:
    """Prints the table."""
    args = arguments(__doc__, "the single run only; some seconds")
    rows = [measure(seeds) for seeds in ((0,) if args.quick else (0, SEEDS))]
    notes = [f"{STEPS} steps a run"]
    print_metrics({"rows": rows, "steps": STEPS}, args.json, COLUMNS, [list(row.values()) for row in rows], notes)


if __name__ == "__main__":
    main()
