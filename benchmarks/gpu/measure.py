"""Everything that wants a GPU, in one command that ends within 8 minutes and prints one JSON object.

    python -m benchmarks.gpu [--quick] [--json] [--device cuda|cpu] [--parts NAME ...] [--seconds 480] [--out FILE]
    python -m benchmarks.gpu --parts run --seconds 590 --out run.json

It needs torch (2.11 to 2.13), transformers, accelerate, pydantic, xxhash and numpy, and no network: weights are drawn
at random. The parts
(`benchmarks.gpu.parts`) run one after another, the most valuable first, each in a process of its own:

| part | what it prints |
|---|---|
| learner, Qwen2.5-0.5B | a training step of 16k packed tokens: share of the GPU's peak, peak memory and its estimate |
| learner, SmolLM2-135M | the same at SmolLM2's shape |
| cross-scoring | 64 prompts of 1,000 tokens x 8 reasonings: seconds, share of the peak, memory and its estimate |
| tests | the tests that are marked `cuda`: FlexAttention's kernel against the dense form, steps against a CPU's |
| memory | peak of a learner rank against its estimate, for each setting that changes it |
| publication | seconds of a publication by each way, beside a plain copy of as many bytes |
| learner, compiled | the step of Qwen2.5-0.5B with `learner.compile` |

`--parts run` compares whole steps with TRL's on one GPU (`benchmarks.peer.on_gpu`, which needs Ray, vLLM and TRL):
weight sync and steps with 4, 2 and 1 engines, TRL tuned and as it comes; publication; the update alone, for each
setting that changes it; cross-scoring; staleness 1; answers of which half end early; TRL with sleep; and Qwen2.5-3B.
It prints a table under the object. What is finished in `--out` is kept and not measured again, so that a second call
goes on.

A part whose packages are not installed is skipped, and the object names them. A part that fails or takes too long is
recorded with the last line of its trace and the metrics that it had, and the others go on. Figures are printed on
standard error as they become known, and written to `--out` each time; a stop signal prints the object as it is.

`--device cpu --quick` runs the parts at a tiny shape, to show that all but the GPU works; the last two, which take
minutes on a CPU, run there if `--parts` names them. Exit code: 0, 1 if a part
failed, 2 if there is no GPU.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from benchmarks.common import parser_of
from benchmarks.gpu.parts import PARTS, WHOLE_RUN, installed
from squelch.kit.base.disk import write_whole

BUDGET_S = 480.0
RESERVE_S = 10.0
"""Seconds of the budget that are left for the end of the last part."""
LEAST_S = 15.0
"""A part that would have less time is not started."""
TRACE_LINES = 25
VERSIONS = ("torch", "transformers", "numpy", "triton", "ray", "vllm")


@dataclass
class Report:
    """The object that is printed, and its copy in `out`."""

    found: dict[str, Any]
    out: Path | None
    started: float = field(default_factory=time.monotonic)

    def add(self, part: str, metrics: dict[str, Any]) -> None:
        """Adds metrics of a part."""
        self.found["parts"].setdefault(part, {}).update(metrics)
        self.found["seconds"] = round(time.monotonic() - self.started, 1)
        sys.stderr.write(f"{self.found['seconds']:.0f} s, {part}: {json.dumps(metrics)}\n")
        sys.stderr.flush()
        self.keep()

    def has(self, part: str) -> bool:
        """Whether an earlier call has measured the part to its end."""
        found = self.found["parts"].get(part, {})
        return "part_seconds" in found and "skipped" not in found and not failed(found)

    def keep(self) -> None:
        """Writes the object as it is to `out`."""
        if self.out is not None:
            write_whole(self.out, json.dumps(self.found, indent=1) + "\n")


def versions() -> dict[str, str | None]:
    """Versions of Python and of the packages that matter; None if one is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in VERSIONS:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def measure(names: Sequence[str], device: str, quick: bool, budget_s: float, report: Report) -> None:
    """Runs the parts and adds their metrics to the report."""
    deadline = report.started + budget_s - RESERVE_S
    names = [name for name in names if not report.has(name)]
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache, "HF_HUB_OFFLINE": "1"}
        environment |= {"OMP_NUM_THREADS": "1"} if device == "cpu" else {}
        for name in names:
            part = PARTS[name]
            report.found["parts"].pop(name, None)  # of a call that failed
            missing = [package for package in part.needs if not installed(package)]
            seconds = min(part.seconds, deadline - time.monotonic())
            if missing:
                report.add(name, {"skipped": f"not installed: {', '.join(missing)}"})
            elif seconds < LEAST_S:
                report.add(name, {"skipped": "no time was left"})
            else:
                run_part(name, command_of(name, device, seconds, quick), seconds, environment, report)


def parts_of(device: str) -> list[str]:
    """The parts that run if none is named: on CPU those that take seconds."""
    known = {name: part for name, part in PARTS.items() if not part.by_name}
    return [name for name, part in known.items() if device == "cuda" or not part.slow_on_cpu]


def command_of(name: str, device: str, seconds: float, quick: bool) -> list[str]:
    """The command line of a part's process."""
    command = [sys.executable, "-m", "benchmarks.gpu.part_worker", name, device, str(seconds)]
    return [*command, "--quick"] if quick else command


def run_part(name: str, command: Sequence[str], seconds: float, environment: Mapping[str, str], report: Report) -> None:
    """Runs one part, and records its metrics, its seconds, and the reason if it does not end well."""
    started = time.monotonic()

    def left() -> float:
        return max(0.0, started + seconds - time.monotonic())

    with tempfile.TemporaryFile("w+") as trace, ended(command, environment, trace) as process:
        lines, error = read_lines(process), None
        try:
            while (line := lines.get(timeout=left())) is not None:
                report.add(name, json.loads(line))
            if process.wait(left()):  # it may hang after its last line
                error = _last_words(trace) or f"exit code {process.returncode}"
        except (queue.Empty, subprocess.TimeoutExpired):
            error = f"stopped after {seconds:.0f} s"
        if error is not None:
            report.add(name, {"error": error})
    report.add(name, {"part_seconds": round(time.monotonic() - started, 1)})


def _last_words(trace: IO[str]) -> str:
    """The last line of a trace, whose end is printed; empty if it is."""
    trace.seek(0)
    lines = trace.read().strip().splitlines()[-TRACE_LINES:]
    sys.stderr.write("\n".join(lines) + "\n")
    return lines[-1] if lines else ""


@contextlib.contextmanager
def ended(command: Sequence[str], environment: Mapping[str, str], trace: IO[str]) -> Iterator[subprocess.Popen[str]]:
    """A process that is killed with its children at the end of the context."""
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=trace, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def read_lines(process: subprocess.Popen[str]) -> queue.Queue[str | None]:
    """The process's lines as they come, then None, by a thread, so that the reader can stop waiting."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in process.stdout or ():
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    return lines


def stop(number: int, frame: Any) -> None:
    """Ends the program by way of its clean-up."""
    raise SystemExit(128 + number)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the object; returns the exit code."""
    parser = parser_of(__doc__, "tiny shapes, under a minute")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="where to run")
    names = [*PARTS, "run"]
    parser.add_argument("--parts", nargs="+", choices=names, metavar="NAME", help="these parts only; run: a whole run")
    parser.add_argument("--seconds", type=float, default=BUDGET_S, help="the whole takes at most this long")
    parser.add_argument("--out", type=Path, help="a file that always holds the object so far, and goes on with it")
    options = parser.parse_args(argv)
    if options.device == "cuda" and not has_gpu():
        sys.stderr.write("benchmarks.gpu: no CUDA device here; --device cpu --quick shows that all but the GPU works\n")
        return 2
    head = {"benchmark": "gpu", "quick": options.quick, "device": options.device, "versions": versions()}
    report = Report(head | {"parts": earlier(options.out, head)}, options.out)
    chosen = WHOLE_RUN if options.parts == ["run"] else options.parts or parts_of(options.device)
    before = signal.signal(signal.SIGTERM, stop)
    try:
        measure(chosen, options.device, options.quick, options.seconds, report)
    finally:
        signal.signal(signal.SIGTERM, before)
        print(json.dumps(report.found, indent=None if options.json else 1), flush=True)
        if options.parts == ["run"] and not options.json:
            print(run_table(report.found["parts"]), flush=True)
    return int(any(map(failed, report.found["parts"].values())))


def failed(part: Mapping[str, Any]) -> bool:
    """Whether a part, or one of its rows, has an error."""
    return "error" in part or any("error" in row for row in part.values() if isinstance(row, dict))


def run_table(parts: Mapping[str, Any]) -> str:
    """The table of the whole steps that were measured."""
    from benchmarks.common import printed
    from benchmarks.peer.on_gpu.measure import COLUMNS, notes, table

    rows: dict[str, Any] = {}
    for name in WHOLE_RUN:  # the work that is stated is that of the first
        own = {key: row for key, row in parts.get(name, {}).items() if isinstance(row, dict)}
        rows |= {key: row for key, row in own.items() if key not in rows}
    return printed(COLUMNS, table(rows), notes(rows))


def earlier(out: Path | None, head: Mapping[str, Any]) -> dict[str, Any]:
    """The parts in the file of an earlier call; none if there is no file, or it is of other work or other versions."""
    if out is None or not out.exists():
        return {}
    found = json.loads(out.read_text())
    same = all(found.get(key) == value for key, value in head.items())
    if not same:
        sys.stderr.write(f"benchmarks.gpu: {out} is of other work or versions, and is measured anew\n")
    return found["parts"] if same else {}


def has_gpu() -> bool:
    """Whether torch sees a CUDA device."""
    import torch

    return torch.cuda.is_available()
