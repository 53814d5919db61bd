"""Measures a training step of the whole loop: wall seconds by part, the cost of orchestration, and what grows.

`python -m benchmarks.loop [--steps N] [--recipe NAME] [--quick] [--json]`, and `key=value` overrides as for `train`.
The recipe runs in its own process, without validation. Orchestration time is the step's wall time without the union of
the intervals in which an actor generates, trains, scores or steps an environment. Its CPU share is the share of the
coordinator, the filter service and Ray's processes in all CPU seconds of the run's process tree over the measured
steps. Growth is of each part's memory and of the files in the run's folder over these steps: `--steps 1000` shows what
a long run needs: the archive's files are merged a hundred steps at a time, and in the first steps engines on a CPU and
learner ranks grow to what they keep. The first two steps are warm-up and left out.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.common import parser_of, print_metrics
from squelch.kit.archive.reader import is_of_step, read_metrics

WARM_UP = 2
PARTS = ("step", "rollout", "filter", "train", "publish", "orchestration")
ROLES = {
    "EngineCore": "engine",
    "RolloutWorker": "rollout worker",
    "EnvironmentActor": "environment actor",
    "LearnerRank": "learner",
    "ScorerActor": "scorer",
    "FilterService": "filter service",
    "raylet": "ray",
    "gcs_server": "gcs",
    "squelch.cluster.cli": "coordinator",
}
ORCHESTRATION = ("coordinator", "filter service", "gcs", "ray")


def role_of(process: psutil.Process) -> str:
    """The part of the system to which a process belongs, by its title."""
    title = " ".join(process.cmdline())
    return next((role for part, role in ROLES.items() if part in title), "ray")


def usage(root: psutil.Process, folder: Path) -> dict[str, np.ndarray]:
    """CPU seconds so far and MiB of memory, (2,), of a process and its descendants, by role; and 0 and the files of the
    folder, as `files`."""
    totals = {"files": np.array([0.0, sum(path.is_file() for path in folder.rglob("*"))])}
    for process in [root, *root.children(recursive=True)]:
        try:
            times, memory, role = process.cpu_times(), process.memory_info().rss / 2**20, role_of(process)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue  # it ended after it was listed
        totals[role] = totals.get(role, 0.0) + np.array([times.user + times.system, memory])
    return totals


def run_steps(
    recipe: str, steps: int, overrides: list[str], runs_dir: Path, warm_up: int = WARM_UP
) -> tuple[dict[str, float], dict[str, float]]:
    """Runs the recipe; CPU seconds of the steps after `warm_up`, and their growth (`usage`), by role. `runs_dir` keeps
    its metrics."""
    words = ["train", recipe, "name=loop", f"runs_dir={runs_dir}", f"loop.steps={steps}", "validation.every=0"]
    words += ["loop.checkpoint_every=1000000", "recorder.port=0", "recorder.report=false", *overrides]
    command = [sys.executable, "-u", "-m", "squelch.cluster.cli", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ)
    try:
        return _watch(process, runs_dir, steps, warm_up)
    finally:
        for child in [*psutil.Process(process.pid).children(recursive=True)] if process.poll() is None else []:
            child.kill()
        process.kill()


def _watch(
    process: subprocess.Popen[str], folder: Path, steps: int, warm_up: int
) -> tuple[dict[str, float], dict[str, float]]:
    root, before, after, seen = psutil.Process(process.pid), {}, {}, []
    assert process.stdout is not None
    for line in process.stdout:
        seen.append(line)
        if line.startswith(f"step {warm_up:4d}/"):
            before = usage(root, folder)
        if line.startswith(f"step {steps:4d}/"):
            after = usage(root, folder)
    if process.wait() != 0:
        raise RuntimeError("the run failed:\n" + "".join(seen[-40:]))
    change = {role: (value - before.get(role, 0.0)).tolist() for role, value in after.items()}
    return {role: cpu for role, (cpu, _) in change.items() if cpu}, {role: more for role, (_, more) in change.items()}


def summary(metrics: list[dict[str, Any]], cpu: dict[str, float], growth: dict[str, float]) -> dict[str, Any]:
    """Medians over the measured steps."""
    measured = [m for m in metrics if m["step"] > WARM_UP and is_of_step(m)]
    parts = {part: float(np.median([m[f"seconds/{part}"] for m in measured])) for part in PARTS}
    total = sum(cpu.values())
    return {
        "steps": len(measured),
        "seconds": parts,
        "orchestration_share": parts["orchestration"] / parts["step"],
        "orchestration_cpu_share": sum(cpu.get(role, 0.0) for role in ORCHESTRATION) / total if total else None,
        "filter_share": parts["filter"] / parts["step"],
        "cpu_seconds_per_step": {role: seconds / len(measured) for role, seconds in sorted(cpu.items())},
        "growth_per_1000_steps": {role: 1000 * more / len(measured) for role, more in sorted(growth.items())},
        "tokens_sampled_per_step": float(np.median([m["tokens/sampled"] for m in measured])),
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
        found = summary(read_metrics(Path(folder) / "loop"), *used)
    rows = [[part, seconds, seconds / found["seconds"]["step"]] for part, seconds in found["seconds"].items()]
    growth = ", ".join(f"{role} {more:.0f}" for role, more in found["growth_per_1000_steps"].items())
    cpu_shares = ", ".join(f"{role} {seconds:.2f}" for role, seconds in found["cpu_seconds_per_step"].items())
    notes = [
        f"{found['steps']} steps, {found['tokens_per_second']:.0f} sampled tokens/s, "
        f"{found['kept_groups']:.1f} groups kept, largest staleness {found['staleness_max']:.0f}",
        f"CPU seconds per step: {cpu_shares}",
        f"growth in 1,000 steps, MiB and number of files: {growth}",
        f"orchestration's CPU share: {found['orchestration_cpu_share']:.3f}",
    ]
    print_metrics(found, options.json, ("part (median)", "seconds", "share of step"), rows, notes)


if __name__ == "__main__":
    main()
