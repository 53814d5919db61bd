"""Runs of the real loop for tests: `squelch train` as a user starts it, in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from squelch.kit.archive.reader import is_of_step, read_metrics
from squelch.kit.checks.run import check

REPOSITORY = Path(__file__).parents[2]


class Run:
    """A `squelch` process whose lines can be waited for. Past its bound it is killed and the lines are shown. Its user
    leaves every right to everyone, so that what others may not do is the run's own doing. Its scorer, which yields to
    every process of the machine, yields to no other test while somebody waits for the run."""

    def __init__(
        self,
        *words: str,
        env: dict[str, str] | None = None,
        prefix: Sequence[str] = (),
        timeout_s: float = 600.0,
        as_job: bool = False,
    ) -> None:
        """`prefix`: a command that runs the command after it, elsewhere; `as_job`: in a process group of its own, as a
        shell's job."""
        self.deadline = time.monotonic() + timeout_s
        self._lifted_at = 0.0
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-u", "-m", "squelch.cluster.cli", *words],
            cwd=REPOSITORY,
            env={**os.environ, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            umask=0,
            process_group=0 if as_job else None,
        )
        os.set_blocking(self.process.stdout.fileno(), False)

    def until(self, wanted: Callable[[str], bool]) -> str:
        """Reads lines until one is wanted; AssertionError with everything seen when none comes in time."""
        while time.monotonic() < self.deadline:
            line = self.process.stdout.readline()
            if line:
                self.lines.append(line.rstrip("\n"))
                if wanted(self.lines[-1]):
                    return self.lines[-1]
            elif self.process.poll() is not None:
                break
            else:
                self._wait()
        self.kill()
        raise AssertionError("the wanted line did not come; seen:\n" + "\n".join(self.lines[-60:]))

    def finish(self) -> int:
        """Reads to the end; the exit code."""
        while self.process.poll() is None:
            if time.monotonic() > self.deadline:
                self.kill()
                raise AssertionError("did not end in time; seen:\n" + "\n".join(self.lines[-60:]))
            if line := self.process.stdout.readline():
                self.lines.append(line.rstrip("\n"))
            else:
                self._wait()
        self.lines += self.process.stdout.read().splitlines()
        return self.process.returncode

    def _wait(self) -> None:
        """A moment; once a second, the scorer gets its share of a machine on which other tests run."""
        time.sleep(0.02)
        if time.monotonic() < self._lifted_at + 1.0:
            return
        self._lifted_at = time.monotonic()
        with contextlib.suppress(OSError, psutil.NoSuchProcess):  # either may end, and root alone may do this
            threads = [one for scorer in actors(self.process.pid, "ScorerActor") for one in scorer.threads()]
            for thread in (one.id for one in threads if os.sched_getscheduler(one.id) == os.SCHED_IDLE):
                os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def signal_job(self, number: signal.Signals) -> None:
        """To every process of the job, as `kill %1` does."""
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """Kills the process and every descendant."""
        doomed = [*children(self.process.pid), psutil.Process(self.process.pid)] if self.process.poll() is None else []
        for process in doomed:
            process.kill()
        psutil.wait_procs(doomed, timeout=180)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def children(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def actors(pid: int, *kinds: str) -> list[psutil.Process]:
    """Descendants of a process that are such actors; Ray titles a process by its actor's class."""
    return [one for one in children(pid) if any(kind in word for word in _title(one) for kind in kinds)]


def _title(process: psutil.Process) -> list[str]:
    """Nothing where the process has just ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.cmdline()
    return []


def wait_gone(processes: list[psutil.Process], timeout_s: float = 90.0) -> list[psutil.Process]:
    """The processes still alive after a bounded wait."""
    return psutil.wait_procs(processes, timeout=timeout_s)[1]


def small_run(tmp_path: Path, model: Path, name: str, *overrides: str) -> list[str]:
    """Words of a `train` command that takes seconds a step."""
    return [
        "train",
        "frozenlake",
        f"name={name}",
        f"runs_dir={tmp_path}",
        f"model.path={model}",
        "loop.prompts=4",
        "learner.ranks=1",
        "sampling.group_size=8",
        "validation.tasks=32",
        "validation.every=2",
        "scorer.every=2",
        "scorer.probe.every=4",
        "scorer.probe.tasks=4",
        "scorer.probe.samples=2",
        "recorder.port=0",
        "recorder.report=false",
        "rollout.kv_cache_gib=0.25",
        "rollout.max_num_seqs=64",
        *overrides,
    ]


STEPS = 5


def compared_run(folder: Path, model: Path) -> list[str]:
    """Words of the `train` command whose course is compared to the bit: whole, stopped, killed and resumed."""
    return small_run(
        folder.parent,
        model,
        folder.name,
        f"loop.steps={STEPS}",
        "loop.checkpoint_every=2",
        "validation.tasks=16",
        "validation.early_stop=paper",
        "learner.minibatches=2",
        "learner.objective.anchor=recomputed",
        "learner.objective.kl.coefficient=0.05",
        "gradients.every=3",
        "gradients.groups=7",
        "filter.min_groups=1",
        "recorder.loggers=[tensorboard]",
    )


@dataclass(frozen=True)
class Finished:
    """A run that nothing interrupted, and what was seen of it while it ran."""

    folder: Path
    run: Run
    code: int
    processes: list[psutil.Process]
    sockets: set[str]
    """Addresses of its processes' sockets, as `tests.exposure.sockets` gives them."""
    left_by_ray: set[str]
    """Names in the folders of Ray's sessions after the end."""
    unfilled: list[str]
    """Queries of the dashboard that it left without a value; empty where Prometheus is not installed."""
    ended: list[float]
    """`squelch_run_ended` as Prometheus saw it last; empty alike."""


def summary(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "summary.json").read_text())


def assert_sound(run_dir: Path, model: Path | None = None) -> dict[str, str]:
    """The run's files show no fault, also where its rows are scored under its checkpoints, and under the `model` that
    it began with. Returns each check's verdict."""
    found = check(run_dir / "groups", base=model or run_dir, checkpoints=run_dir / "checkpoints", format="squelch")
    assert [(one.name, one.says) for one in found.faults] == []
    verdicts = {one.name: one.verdict for one in found.results}
    assert found.rows and verdicts["group_sizes"] == "sound"
    return verdicts


def steps(run_dir: Path) -> list[dict[str, Any]]:
    """The records of the steps in `metrics.jsonl`."""
    return [line for line in read_metrics(run_dir) if is_of_step(line)]
