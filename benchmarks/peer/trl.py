"""Runs the same GRPO work in Squelch and in TRL 1.16, with alternating steps on the same cores.

python -m benchmarks.peer.trl [--quick] [--json]
python -m benchmarks.peer.trl --learn [--dir FOLDER] [--plot FILE.svg] [--quick] [--json]
python -m benchmarks.peer.trl --device cuda [--seconds 590] [--quick] [--json]

The work is one turn with 8 prompts of 40 random tokens x 16 samples x 64 new tokens (no end token stops a sample) and
one optimizer step; the model is a random Qwen2 of 3.3 M parameters, float32, T = 1, no KL, 2 threads per trainer. The
reward is the share of even ids. All workers run all the time and alternate after each step, so that other load on the
machine affects both; the first step of each is left out. TRL generates as by default; `benchmarks.peer.trl_worker` has
its settings and `benchmarks.peer.squelch_worker` Squelch's. TRL runs twice: with its defaults, to which the target
ratio refers, and `tuned`: without the gradient checkpointing that it enables (this model does not need it) and with the
OpenMP and allocator variables that Squelch's learner sets for itself. `--quick` has 16 new tokens and one timed step:
it shows that everything works, but the target does not apply to its ratio.

`--learn` compares what they learn instead (`benchmarks.peer.learning`); `--dir` keeps the finished curves, with which
an interrupted benchmark goes on.

`--device cuda` compares whole steps at the shape of Qwen2.5-0.5B on one GPU instead (`benchmarks.peer.on_card`): TRL
generates with vLLM in its own process, tuned and as it comes, with sleep and without. It needs TRL beside this
environment (`deploy/setup.sh trl`). `--device cuda --quick` without a GPU does all of it on the CPU at a tiny shape.

TRL has its own virtual environment, `.bench-venv`, because its requirements differ. The first use creates it (about a
minute, 1.5 GB). `--quick` does not create it: if it is missing, `--quick` says so and exits with code 2.

| actor | waits for | on time-out |
|---|---|---|
| benchmark | a worker's start, or its step | RuntimeError that names the worker and quotes the end of its log |
| worker | the request for a step | no time-out: it ends at the end of its input, at the latest with the benchmark |
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil

from benchmarks import common
from benchmarks.peer import learning
from benchmarks.peer import work as peer_work
from benchmarks.peer.work import Work

REPOSITORY = Path(__file__).resolve().parents[2]
PEER_VENV = REPOSITORY / ".bench-venv"
TORCH = "torch==2.13.0"
"""The version in the project's own environment."""
TRL = "trl==1.16.*"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
STAMP = "squelch-peer"
TARGET = 4.0
UPDATE_TARGET = 3.0
SHAPE = {"width": 256, "layers": 4, "hidden": 768, "heads": 4}
TRAINERS = ("squelch", "trl", "trl_tuned")
COLUMNS = ("median", "Squelch", "TRL", "TRL tuned", "TRL ratio", "tuned ratio")
VERDICTS = {True: "reached", False: "NOT reached", None: "not judged on less than the whole work"}
PARTS = ("step", "generation", "update", "publication", "cpu")
START_S, STEP_S, STOP_S = 180.0, 300.0, 30.0
INSTALL_S = 1800.0
LOG_TAIL = 3000


def peer_python(may_install: bool) -> Path:
    """The interpreter of TRL's environment, which is created if missing. Exits with 2 if it is missing and may not be
    installed."""
    python, stamp, wanted = PEER_VENV / "bin" / "python", PEER_VENV / STAMP, f"{TORCH} {TRL}"
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    if not may_install:
        print(
            f"peer_trl: {PEER_VENV.name} with {TRL} is missing, and --quick does not make it; run once without --quick",
            file=sys.stderr,
        )
        sys.exit(2)
    print(f"peer_trl: installing {TRL} into {PEER_VENV.name}; about a minute", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", str(PEER_VENV)], check=True, timeout=INSTALL_S)
    # `+cpu` names the CPU build, so that a missing one fails instead of bringing several GB of CUDA packages.
    cpu = f"{TORCH}+cpu"
    if not installed(python, cpu) and not installed(python, cpu, "--extra-index-url", TORCH_INDEX):
        raise RuntimeError(f"no CPU build of {TORCH} in the configured index or {TORCH_INDEX}")
    constraints = PEER_VENV / "constraints.txt"
    constraints.write_text(TORCH + "\n")
    if not installed(python, TRL, "-c", str(constraints)):
        raise RuntimeError(f"pip could not install {TRL} beside {TORCH}")
    stamp.write_text(wanted)
    return python


def installed(python: Path, *arguments: str) -> bool:
    """Installs packages with pip; returns whether that succeeded."""
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, stdout=sys.stderr, timeout=INSTALL_S, check=False).returncode == 0


class Worker:
    """The process of one trainer, in its own session, so that all its child processes can be ended with it."""

    def __init__(self, name: str, command: list[str], variables: dict[str, str], log: Path) -> None:
        self.name, self.log = name, log
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=REPOSITORY,
                env={**os.environ, **variables},
                start_new_session=True,
            )

    def answer(self, timeout_s: float) -> dict[str, Any]:
        """The worker's next answer. RuntimeError, which names the worker, if it is late or has died."""
        assert self.process.stdout is not None
        # A worker answers once for each line that it gets, so Python's own buffer is empty here.
        ready, _, _ = select.select([self.process.stdout], [], [], timeout_s)
        line = self.process.stdout.readline() if ready else ""
        if not line:
            what = "ended" if ready else f"said nothing for {timeout_s:g} s"
            raise RuntimeError(f"the {self.name} worker {what}; its log ends with:\n{self.log.read_text()[-LOG_TAIL:]}")
        return json.loads(line)

    def step(self) -> dict[str, Any]:
        """Lets the worker make one step; returns its metrics with `cpu`, the CPU seconds of all its processes."""
        assert self.process.stdin is not None
        before = self._cpu_seconds()
        self.process.stdin.write("step\n")
        self.process.stdin.flush()
        return {**self.answer(STEP_S), "cpu": self._cpu_seconds() - before}

    def _cpu_seconds(self) -> float:
        root = psutil.Process(self.process.pid)
        times = [process.cpu_times() for process in (root, *root.children(recursive=True))]
        return sum(time.user + time.system for time in times)

    def stop(self) -> None:
        """Ends the worker and every process that it started."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            print(f"peer_trl: the {self.name} worker did not end within {STOP_S:g} s and is killed", file=sys.stderr)
        with suppress(ProcessLookupError):  # usually no process is left
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(STOP_S)


def run(work: Work, python: Path) -> dict[str, Any]:
    """Runs the work's steps alternately by each trainer; the metrics leave out the first step of each."""
    with tempfile.TemporaryDirectory(prefix="squelch-peer-") as name:
        folder = Path(name)
        parameters = common.random_qwen2(folder, vocabulary=work.vocabulary, seed=peer_work.SEED, **SHAPE)
        ready, steps = alternate(work, folder, python, TRAINERS)
    return summary(work, parameters, ready, {trainer: rows[1:] for trainer, rows in steps.items()})


def alternate(
    work: Work, folder: Path, python: Path, trainers: Sequence[str]
) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """Runs the work's steps alternately by the named trainers, with the model in the folder. Returns what each
    trainer said when it was ready, and the metrics of its steps."""
    with ExitStack() as stack:
        peer_work.save(work, folder)
        workers = start(work, folder, python, trainers, stack)
        ready = {trainer: worker.answer(START_S) for trainer, worker in workers.items()}
        steps: dict[str, list[dict[str, Any]]] = {trainer: [] for trainer in workers}
        for _ in range(work.num_steps):
            for trainer, worker in workers.items():
                steps[trainer].append(worker.step())
    return ready, steps


def start(work: Work, folder: Path, python: Path, trainers: Sequence[str], stack: ExitStack) -> dict[str, Worker]:
    """Starts the workers and returns them before they are ready; the stack ends them."""
    from squelch.learner.process_environment import ENVIRONMENT

    threads = {"OMP_NUM_THREADS": str(work.num_threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    commands = {
        "squelch": (Path(sys.executable), ["benchmarks.peer.squelch_worker", str(folder)], threads),
        "trl": (python, ["benchmarks.peer.trl_worker", str(folder)], threads),
        "trl_tuned": (python, ["benchmarks.peer.trl_worker", str(folder), "tuned"], threads | ENVIRONMENT),
    }
    workers = {}
    for trainer in trainers:
        interpreter, arguments, variables = commands[trainer]
        command = [str(interpreter), "-m", *arguments]
        workers[trainer] = Worker(trainer, command, variables, folder / f"{trainer}.log")
        stack.callback(workers[trainer].stop)
    return workers


def summary(
    work: Work, parameters: int, ready: dict[str, Any], steps: dict[str, list[dict[str, Any]]]
) -> dict[str, Any]:
    """Medians over the timed steps. `ratio`: Squelch's steps per minute over TRL's."""
    trainers: dict[str, dict[str, Any]] = {
        trainer: {
            **{part: statistics.median(row[part] for row in rows) for part in PARTS},
            "steps_per_minute": 60 / statistics.median(row["step"] for row in rows),
            "steps": rows,
            **ready[trainer],
        }
        for trainer, rows in steps.items()
    }
    ours, peer, tuned = (trainers[trainer] for trainer in TRAINERS)
    return {
        "benchmark": "peer_trl",
        "parameters": parameters,
        "prompts": work.num_prompts,
        "samples": work.num_samples,
        "prompt_tokens": work.prompt_tokens,
        "new_tokens": work.new_tokens,
        "threads": work.num_threads,
        "rounds": len(steps["trl"]),
        "ratio": peer["step"] / ours["step"],
        "ratio_tuned": tuned["step"] / ours["step"],
        "update_ratio": peer["update"] / ours["update"],
        "update_target": UPDATE_TARGET,
        "target": TARGET,
        "reached": peer["step"] / ours["step"] >= TARGET if work.new_tokens == Work.new_tokens else None,
        **trainers,
    }


def table(found: dict[str, Any]) -> list[list[Any]]:
    """Rows of (name, Squelch, TRL, TRL tuned, the two over Squelch)."""
    ours, peer, tuned = (found[trainer] for trainer in TRAINERS)
    learning = ours["update"] + ours["publication"]
    rows = [
        ("step, s", ours["step"], peer["step"], tuned["step"]),
        ("generation, s", ours["generation"], peer["generation"], tuned["generation"]),
        ("update and publication, s", learning, peer["update"], tuned["update"]),
        ("CPU seconds of a step", ours["cpu"], peer["cpu"], tuned["cpu"]),
    ]
    table = [[name, own, *others, *(other / own for other in others)] for name, own, *others in rows]
    table.insert(3, ["of it publication, s", ours["publication"], "", "", "", ""])
    return [*table, ["steps per minute", *(found[trainer]["steps_per_minute"] for trainer in TRAINERS), "", ""]]


def notes(found: dict[str, Any]) -> list[str]:
    """The lines under the table, which explain its metrics."""
    versions = [
        " ".join(f"{name} {version}" for name, version in found[trainer]["versions"].items()) for trainer in TRAINERS
    ]
    return [
        f"{found['prompts']} prompts of {found['prompt_tokens']} tokens x {found['samples']} samples x "
        f"{found['new_tokens']} new tokens, {found['parameters'] / 1e6:.1f} M parameters, float32, {found['threads']} "
        f"threads each; medians of {found['rounds']} steps, in turn",
        f"Squelch on {versions[0]}; TRL: {versions[1]}",
        f"update: {found['update_ratio']:.1f} times TRL's speed, wanted at least {found['update_target']:g}",
        f"{found['ratio']:.1f} times TRL's steps per minute; wanted at least {TARGET:g}: {VERDICTS[found['reached']]}",
    ]


def on_card(arguments: argparse.Namespace) -> int:
    """The comparison on one GPU, or on the CPU at a tiny shape if there is none and it is quick."""
    import torch

    from benchmarks.gpu.common import Setting
    from benchmarks.peer.on_card import measure

    if not torch.cuda.is_available() and not arguments.quick:
        print("peer_trl: no CUDA device here; --quick shows on the CPU that all but the GPU works", file=sys.stderr)
        return 2
    device, rows = "cuda" if torch.cuda.is_available() else "cpu", dict[str, Any]()
    with tempfile.TemporaryDirectory(prefix="squelch-card-") as name:
        for part in (measure.workers, measure.asleep):
            folder = Path(name) / part.__name__
            deadline = time.monotonic() + arguments.seconds * (0.6 if part is measure.workers else 0.4)
            for found in part(Setting(device, arguments.quick, folder, deadline)):
                rows |= found
                print(json.dumps(found), file=sys.stderr)
    common.print_metrics(rows, arguments.json, measure.COLUMNS, measure.table(rows), measure.notes(rows))
    return int(any("error" in row for row in rows.values() if isinstance(row, dict)))


def main() -> int:
    """Prints the metrics; returns the exit code."""
    parser = common.parser_of(__doc__, "one timed step of 16 new tokens instead of 7 of 64; never installs")
    parser.add_argument("--learn", action="store_true", help="compare what they learn: 60 steps, five seeds")
    parser.add_argument("--dir", help="with --learn: folder that keeps the finished curves")
    parser.add_argument("--plot", help="with --learn: file for the figure (SVG)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: whole steps on one GPU")
    parser.add_argument("--seconds", type=float, default=590.0, help="with --device cuda: the whole takes this long")
    arguments = parser.parse_args()
    if arguments.device == "cuda":
        return on_card(arguments)
    if arguments.learn:
        return learning.main(arguments, peer_python(may_install=not arguments.quick))
    work = Work(num_steps=2, new_tokens=16) if arguments.quick else Work(num_steps=8)
    found = run(work, peer_python(may_install=not arguments.quick))
    common.print_metrics(found, arguments.json, COLUMNS, table(found), notes(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
