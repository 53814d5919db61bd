"""A run that is started, watched, and resumed after every end, until it is asked to stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from squelch.kit.archive.reader import read_events, read_metrics

REPOSITORY = Path(__file__).parents[3]
POLL_S = 0.1
LAST_LINES = 40
KILL_S = 90.0
"""Seconds in which a killed process must be gone: on a machine under load 20 were not enough."""


class Hung(Exception):
    """What was waited for did not come in time."""


@dataclass
class End:
    """How one process of the run ended. `line`: its last line."""

    code: int
    line: str


@dataclass
class Session:
    """`words`: those of `squelch train`. `prefix`: a command that runs the command after it, elsewhere."""

    words: Sequence[str]
    run_dir: Path
    log: Path
    prefix: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the run, or resumes it if its folder holds one."""
        resume = ["--resume"] if (self.run_dir / "config.yaml").exists() else []
        command = [*self.prefix, sys.executable, "-u", "-m", "squelch.cluster.cli", *self.words, *resume]
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                command, cwd=REPOSITORY, env={**os.environ, **self.env}, stdout=output, stderr=subprocess.STDOUT
            )

    @property
    def driver(self) -> psutil.Process:
        """The run's own process."""
        assert self.process is not None, "the run was not started"
        return psutil.Process(self.process.pid)

    @property
    def ended(self) -> End | None:
        """How the process ended; None while it runs."""
        assert self.process is not None, "the run was not started"
        code = self.process.poll()
        return None if code is None else End(code, self.lines()[-1])

    def lines(self) -> list[str]:
        """The last lines that the run printed."""
        return self.log.read_text(errors="replace").splitlines()[-LAST_LINES:] or [""]

    def steps(self) -> list[tuple[int, float]]:
        """(step, unix time of its record) of every recorded step."""
        return [(row["step"], row["time"]) for row in read_metrics(self.run_dir)] if self.run_dir.exists() else []

    def step(self) -> int:
        """The last recorded step."""
        return max((step for step, _ in self.steps()), default=-1)

    def events(self) -> list[dict[str, Any]]:
        """The run's events."""
        return read_events(self.run_dir) if self.run_dir.exists() else []

    def until_step(self, step: int, timeout_s: float) -> End | None:
        """Waits for the record of a step, or for the run's end, which is returned. Hung after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while (end := self.ended) is None and self.step() < step:
            if time.monotonic() > deadline:
                raise Hung(f"step {step} did not end within {timeout_s:g} s; at step {self.step()}")
            time.sleep(POLL_S)
        return end

    def finish(self, timeout_s: float) -> End:
        """Asks the run to stop; its end. Hung after `timeout_s`."""
        assert self.process is not None, "the run was not started"
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise Hung(f"the run did not stop within {timeout_s:g} s") from error
        end = self.ended
        assert end is not None
        return end

    def kill(self) -> None:
        """Ends the run's own process at once; Ray ends its actors."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(KILL_S)
