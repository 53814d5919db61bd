"""Measures a training step of the whole loop: wall seconds by part, and the cost of orchestration.

`python -m benchmarks.loop [--steps N] [--recipe NAME] [--quick] [--json]`, and `key=value` overrides as for `train`.
The recipe runs in its own process, without validation. Orchestration time is the step's wall time without the union of
the intervals in which an actor generates, trains, scores or steps an environment. Its CPU share is the share of the
coordinator, the filter service and Ray's processes in all CPU seconds of the run's process tree over the measured
steps. The first two steps are warm-up and left out.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.common import parser_of, print_metrics
from benchmarks.startup import role_of
from squelch.kit.archive.reader import is_of_step, read_metrics

WARM_UP = 2
PARTS = ("step", "rollout", "filter", "train", "publish", "orchestration")
ORCHESTRATION = ("driver", "filter service", "Ray's own", "Ray's spare workers")


def usage(root: psutil.Process) -> dict[str, float]:
    """CPU seconds so far of a process and its descendants, by role."""
    totals: dict[str, float] = {}
    for process in [root, *root.children(recursive=True)]:
        try:
            times, role = process.cpu_times(), role_of(process, root.pid)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue  # it ended after it was listed
        totals[role] = totals.get(role, 0.0) + times.user + times.system
    return totals


def run_steps(recipe: str, steps: int, overrides: list[str], runs_dir: Path) -> dict[str, float]:
    """Runs the recipe; CPU seconds of the steps after the warm-up by role. `runs_dir` keeps its metrics."""
    words = ["train", recipe, "name=loop", f"runs_dir={runs_dir}", f"loop.steps={steps}", "validation.every=0"]
    words += ["loop.checkpoint_every=1000000", "recorder.port=0", "recorder.report=false", *overrides]
    command = [sys.executable, "-u", "-m", "squelch.cluster.cli", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        return _watch(process, steps)
    finally:
        for child in [*psutil.Process(process.pid).children(recursive=True)] if process.poll() is None else []:
            child.kill()
        process.kill()


def _watch(process: subprocess.Popen[str], steps: int) -> dict[str, float]:
    root, before, after, seen = psutil.Process(process.pid), {}, {}, []
    assert process.stdout is not None
    for line in process.stdout:
        seen.append(line)
        if line.startswith(f"step {WARM_UP:4d}/"):
            before = usage(root)
        if line.startswith(f"step {steps:4d}/"):
            after = usage(root)
    if process.wait() != 0:
        raise RuntimeError("the run failed:\n" + "".join(seen[-40:]))
    return {role: seconds - before.get(role, 0.0) for role, seconds in after.items()}


def summary(metrics: list[dict[str, Any]], cpu: dict[str, float]) -> dict[str, Any]:
    """Medians over the measured steps."""
    measured = [m for m in metrics if m["step"] > WARM_UP and is_of_step(m)]
    parts = {part: float(np.median([m[f"seconds/{part}"] for m in measured])) for part in PARTS}
    return {
        "steps": len(measured),
        "seconds": parts,
        "orchestration_share": parts["orchestration"] / parts["step"],
        "orchestration_cpu_share": sum(cpu.get(role, 0.0) for role in ORCHESTRATION) / sum(cpu.values()),
        "cpu_seconds_per_step": {role: seconds / len(measured) for role, seconds in sorted(cpu.items())},
        "tokens_per_second": float(np.median([m["tokens/per_second"] for m in measured])),
        "kept_groups": float(np.mean([m["kept_groups"] for m in measured])),
        "staleness_max": max(m["staleness_max"] for m in measured),
    }


def main() -> None:
    """Prints the metrics."""
    parser = parser_of(__doc__, "6 steps")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--recipe", default="frozenlake")
    parser.add_argument("--steps", type=int, default=22)
    options = parser.parse_args()
    steps = 6 if options.quick else options.steps
    with tempfile.TemporaryDirectory() as folder:
        used = run_steps(options.recipe, steps, options.overrides, Path(folder))
        found = summary(read_metrics(Path(folder) / "loop"), used)
    rows = [[part, seconds, seconds / found["seconds"]["step"]] for part, seconds in found["seconds"].items()]
    cpu_shares = ", ".join(f"{role} {seconds:.2f}" for role, seconds in found["cpu_seconds_per_step"].items())
    notes = [
        f"{found['steps']} steps, {found['tokens_per_second']:.0f} sampled tokens/s, "
        f"{found['kept_groups']:.1f} groups kept, largest staleness {found['staleness_max']:.0f}",
        f"CPU seconds per step: {cpu_shares}",
        f"orchestration's CPU share: {found['orchestration_cpu_share']:.3f}",
    ]
    print_metrics(found, options.json, ("part (median)", "seconds", "share of step"), rows, notes)


if __name__ == "__main__":
    main()
