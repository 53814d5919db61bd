"""Measures what the start of a run costs: CPU seconds by process, until the run is ready and until its first step is.

    python -m benchmarks.startup [--quick] [--json]

CPU seconds (user and system, of all threads) rather than seconds of the clock, which on a busy machine say what others
do. The run is the demo for one step, started twice: the first start makes what later ones find (the tiny policy,
compiled Python, the cache of files), and only the second is shown. A process is named after what it does; `imports` are
the CPU seconds of a fresh Python that imports what such a process needs and does nothing else, which no setting of a
run can go below. `--quick` starts once and leaves out the imports.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.common import arguments, print_metrics

EVERY_S = 0.1
"""Seconds between two looks at the processes: what a process does after the last look of its life is missed."""
LONGEST_S = 600.0
READY = "ready after"
"""How the line begins with which a run says that it is ready."""
STEP = "step    1"
PARTS = {
    "ray::RolloutWorker": "rollout worker",
    "VLLM::EngineCore": "its engine",
    "ray::LearnerRank": "learner rank",
    "ray::ScorerActor": "scorer",
    "ray::EnvironmentActor": "environment actor",
    "ray::FilterService": "filter service",
    "ray::ControlEndpoint": "control endpoint",
    "gcs_server": "Ray's own",
    "raylet": "Ray's own",
    "ray/": "Ray's own",
    "ray-": "Ray's own",
    "ray::": "Ray's spare workers",
}
"""What a process does, by a part of its title or command; the first that is found counts."""
NEEDS = {
    "driver": "squelch.cluster.loop.run",
    "rollout worker": "squelch.actors.rollout.worker, vllm.v1.engine.async_llm",
    "its engine": "vllm.v1.engine.core, vllm.v1.worker.cpu_worker",
    "learner rank": "squelch.learner.rank",
    "scorer": "squelch.actors.scorer.actor, squelch.kit.scoring.cross_scoring",
    "environment actor": "squelch.actors.play.actor",
    "filter service": "squelch.actors.filter.service",
}
"""The modules that a process of a kind needs."""


@dataclass
class Process:
    """One process of a run. `name`: what it does, as far as is known."""

    name: str
    seconds: dict[str, float] = field(default_factory=dict)
    """CPU seconds at the end of each phase, and in the last one so far."""


def role_of(process: psutil.Process, driver: int) -> str:
    """What a process does; empty if it has ended or is nobody known."""
    if process.pid == driver:
        return "driver"
    try:
        words = " ".join(process.cmdline())
    except psutil.Error:
        return ""
    return next((name for part, name in PARTS.items() if part in words), "others")


def look(driver: int, found: dict[int, Process], phase: str) -> None:
    """Notes the CPU seconds of the run's processes so far. A process shows what it does only after a while."""
    try:
        root = psutil.Process(driver)
        family = [root, *root.children(recursive=True)]
    except psutil.Error:
        return
    for process in family:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        known = found.setdefault(process.pid, Process(""))
        known.name = role_of(process, driver) or known.name
        known.seconds[phase] = times.user + times.system


def watched(command: list[str], output: Path) -> tuple[dict[int, Process], dict[str, float]]:
    """Runs a command to its end; its processes, and the seconds of the clock at the end of each phase."""
    found: dict[int, Process] = {}
    ends: dict[str, float] = {}
    began = time.monotonic()
    # A later start finds compiled Python, as a user's does.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with output.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, text=True, env=env)
    try:
        while process.poll() is None:
            if time.monotonic() - began > LONGEST_S:
                raise RuntimeError(f"the run did not end within {LONGEST_S:g} s: {output.read_text()[-2000:]}")
            phase = phase_of(output.read_text())
            look(process.pid, found, phase)
            ends[phase] = time.monotonic() - began
            time.sleep(EVERY_S)
    finally:
        process.kill()
    if process.wait() != 0:
        raise RuntimeError(f"the run ended with exit code {process.returncode}: {output.read_text()[-2000:]}")
    return found, ends


def phase_of(said: str) -> str:
    """What a run is doing that has said this."""
    if READY not in said:
        return "start"
    return "end" if STEP in said else "step"


def by_name(found: Mapping[int, Process]) -> dict[str, dict[str, float]]:
    """Number and CPU seconds until ready, and of the first step, of the processes of each name."""
    rows: dict[str, dict[str, float]] = {}
    for process in found.values():
        row = rows.setdefault(process.name, {"processes": 0, "start": 0.0, "step": 0.0})
        start = process.seconds.get("start", 0.0)
        row["processes"] += 1
        row["start"] += start
        row["step"] += max(0.0, process.seconds.get("step", start) - start)
    return rows


def imports() -> Iterator[tuple[str, float]]:
    """CPU seconds of a Python that imports what each kind of process needs; the second of two, which finds the files
    in memory."""
    for name, modules in NEEDS.items():
        for _ in range(2):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, "-c", f"import {modules}"], check=True, capture_output=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
        yield name, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(starts: int, folder: Path) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """The last of some starts: its processes by name, and the clock."""
    found: dict[int, Process] = {}
    ends: dict[str, float] = {}
    for number in range(starts):
        words = ["train", "frozenlake", f"name=start-{number}", f"runs_dir={folder}", "loop.steps=1"]
        words += ["validation.every=0", "recorder.port=0", "recorder.report=false"]
        command = [sys.executable, "-u", "-m", "squelch.cluster.cli", *words]
        found, ends = watched(command, folder / f"output-{number}")
    return by_name(found), ends


def main() -> None:
    """Prints the table."""
    options = arguments(__doc__, "one start, and no imports")
    with tempfile.TemporaryDirectory() as folder:
        rows, ends = measure(1 if options.quick else 2, Path(folder))
    alone = {} if options.quick else dict(imports())
    for name, row in rows.items():
        row["imports"] = alone.get(name, 0.0) * row["processes"]
    total = {key: sum(row[key] for row in rows.values()) for key in ("processes", "start", "imports", "step")}
    ordered = [*sorted(rows.items(), key=lambda item: -item[1]["start"]), ("all", total)]
    table = [[name, *(f"{row[key]:.1f}" for key in ("processes", "start", "imports", "step"))] for name, row in ordered]
    notes = [f"ready after {ends['start']:.0f} s of the clock, which other work on the machine lengthens"]
    columns = ("process", "number", "CPU s until ready", "of it imports", "CPU s of the first step")
    print_metrics({"processes": rows | {"all": total}, "seconds": ends}, options.json, columns, table, notes)


if __name__ == "__main__":
    main()
