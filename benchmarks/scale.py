"""Measures what a change of the number of rollout workers costs a run: 1 to 2 to 1 workers, by `squelch scale`.

`python -m benchmarks.scale [--quick] [--json]`, and `key=value` overrides as for `train`. A run of the demo with short
steps is scaled up and, a few steps after the new worker has come, down again. Printed of each change:

    answered      seconds of the command, of which most is the start of a Python that joins Ray
    done          seconds from the run's answer until the member had come or left
    held          seconds for which the coordinator held the learner because of it: the time for which an update of the
                  weights waited for the new worker alone, and for which the coordinator did nothing else
    boundaries    weight boundaries from the moment the new worker was ready for work to its first group

`--quick` is a run of fewer steps between the changes.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.common import parser_of, print_metrics
from squelch.kit.archive.reader import read_events, read_index, read_metrics

SMALL = (
    "loop.prompts=4",
    "loop.max_staleness=1",
    "sampling.group_size=8",
    "learner.ranks=1",
    "rollout.max_num_seqs=32",
    "rollout.kv_cache_gib=0.25",
    "recorder.report=false",
    "scorer.enabled=false",
)
LONGEST_S = 400.0
NEW = "rollout-1"


def until(found: Callable[[], Any], process: subprocess.Popen[str], what: str) -> Any:
    """The first result that is true; RuntimeError if none comes in time or the run ends."""
    deadline = time.monotonic() + LONGEST_S
    while time.monotonic() < deadline and process.poll() is None:
        if result := found():
            return result
        time.sleep(0.1)
    why = "the run ended" if process.poll() is not None else f"it did not come within {LONGEST_S:g} s"
    raise RuntimeError(f"{what}: {why}")


def event(run_dir: Path, name: str) -> dict[str, Any] | None:
    """The first event of this name of the new worker."""
    return next((e for e in read_events(run_dir) if (e["actor"], e["name"]) == (NEW, name)), None)


def step(run_dir: Path) -> int:
    """The last recorded step."""
    return max((line["step"] for line in read_metrics(run_dir)), default=0)


def scale(run_dir: Path, count: int) -> float:
    """Asks for a number of workers; seconds until the answer."""
    began = time.monotonic()
    command = [sys.executable, "-m", "squelch.cluster.cli", "scale", str(run_dir), "--rollout-workers", str(count)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def measure(overrides: list[str], between: int, folder: Path) -> list[dict[str, Any]]:
    """Runs, scales up and down, and stops; the metrics of both changes."""
    words = ["train", "frozenlake", "name=scale", f"runs_dir={folder}", "loop.steps=100000", "validation.every=0"]
    words += ["rollout.max_count=2", "recorder.port=0", *SMALL, *overrides]
    run_dir, output = folder / "scale", folder / "output"
    with output.open("w") as file:
        command = [sys.executable, "-u", "-m", "squelch.cluster.cli", *words]
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, text=True)
    try:
        until(lambda: (run_dir / "metrics.jsonl").exists() and step(run_dir) >= 2, process, "the second step")
        up = {"change": "1 to 2", "answered": scale(run_dir, 2)}
        joined = until(lambda: event(run_dir, "joined"), process, "the new worker")
        came = step(run_dir)
        until(lambda: step(run_dir) >= came + between, process, "the steps between the changes")
        down = {"change": "2 to 1", "answered": scale(run_dir, 1)}
        left = until(lambda: event(run_dir, "left"), process, "the new worker's end")
        gone = step(run_dir)
        until(lambda: step(run_dir) > gone + 1, process, "a step after it")
    finally:
        process.send_signal(signal.SIGTERM)
        if process.wait(LONGEST_S) != 128 + signal.SIGTERM:
            raise RuntimeError(f"the run ended with exit code {process.returncode}: {output.read_text()[-2000:]}")
    up |= {"done": joined["end"] - joined["start"], "held": joined["held_s"], "boundaries": boundaries(run_dir, joined)}
    return [up, down | {"done": left["end"] - left["start"], "held": left["held_s"], "boundaries": None}]


def boundaries(run_dir: Path, joined: dict[str, Any]) -> int:
    """Weight boundaries between the moment at which the new worker was healthy and the issue of its first group."""
    index = read_index(run_dir)
    workers, steps = index["worker"].to_pylist(), index["step"].to_pylist()
    first = min(step for step, worker in zip(steps, workers, strict=True) if worker == NEW)
    ended = {line["step"]: line["time"] for line in read_metrics(run_dir)}
    issued = ended.get(
        first - 2, 0.0
    )  # max_staleness 1: its tickets are issued when the step before the last has ended
    return sum(joined["end"] < time <= issued for time in ended.values())


def main() -> None:
    """Prints the metrics."""
    parser = parser_of(__doc__, "2 steps between the changes instead of 10")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the run is ended too
    with tempfile.TemporaryDirectory() as folder:
        changes = measure(options.overrides, 2 if options.quick else 10, Path(folder))
    columns = ("change", "answered", "done", "held", "boundaries")
    rows = [[change[column] for column in columns] for change in changes]
    notes = ["seconds; the coordinator may hold the learner for less than 0.050 s a change"]
    print_metrics({"changes": changes}, options.json, columns, rows, notes)


if __name__ == "__main__":
    main()
