"""The processes of both sides on one GPU: they load at the same time, and then work one after another.

| actor | waits for | unblocked by | on time-out |
|---|---|---|---|
| `in_turn` | a side's first generated step | the file `BARRIER.reached`, or the side's end | it is recorded as late |
| `in_turn` | a side's work | the side's end | what it has is recorded, and it is ended |
| a side | its turn | the file `BARRIER` | none: it ends with this process's session |

A GPU is to be had for minutes, so nothing here waits for what cannot come: a side that fails gives the end of its log,
and the next one begins.
"""

from __future__ import annotations

import os
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.common import REPOSITORY, end, search_path
from benchmarks.peer.on_gpu.work import BARRIER

STOP_S = 20.0
POLL_S = 0.2
LOG_TAIL = 1500


class Side(ABC):
    """One side's process. `gib`: memory of the GPU that it needs, at most."""

    def __init__(self, name: str, folder: Path, gib: float) -> None:
        self.name, self.folder, self.gib = name, folder, gib
        self.barrier, self.log = folder / f"{name}.go", folder / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> list[str]:
        """The command line."""

    @abstractmethod
    def found(self) -> dict[str, dict[str, Any]]:
        """What is known so far, by row of the table."""

    def variables(self) -> Mapping[str, str]:
        """Environment variables beside this process's."""
        return {}

    def look(self) -> None:
        """Called while the side works, for a side that is told something meanwhile."""
        return

    def start(self) -> None:
        """Starts the process, in a session of its own."""
        own = {BARRIER: str(self.barrier), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=REPOSITORY,
                env={**os.environ, "PYTHONPATH": search_path(), **own, **self.variables()},
                start_new_session=True,
            )

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self.process is not None and self.process.poll() is not None

    @property
    def loaded(self) -> bool:
        """Whether it has generated its first step."""
        return Path(f"{self.barrier}.reached").exists()

    def failure(self) -> str | None:
        """The end of the log if the process failed."""
        code = None if self.process is None else self.process.poll()
        if code in (None, 0):
            return None
        return f"exit code {code}; the log ends with: {self.log.read_text(errors='replace')[-LOG_TAIL:]}"

    def stop(self) -> None:
        """Ends the process and its children."""
        if self.process is not None:
            end(self.process, STOP_S)


def grouped(sides: Sequence[Side], card_gib: float) -> list[list[Side]]:
    """The sides in their order, as many at a time as the GPU holds."""
    groups: list[list[Side]] = []
    for side in sides:
        if not groups or sum(one.gib for one in groups[-1]) + side.gib > card_gib:
            groups.append([])
        groups[-1].append(side)
    return groups


def in_turn(sides: Sequence[Side], card_gib: float, deadline: float) -> Iterator[dict[str, Any]]:
    """The rows of all sides, as they become known. `deadline`: of `time.monotonic`."""
    for group in grouped(sides, card_gib):
        with ExitStack() as stack:
            for side in group:
                side.start()
                stack.callback(side.stop)
            until(lambda group=group: all(side.loaded or side.ended for side in group), deadline)
            for side in group:
                yield from worked(side, deadline)
                side.stop()


def worked(side: Side, deadline: float) -> Iterator[dict[str, Any]]:
    """Lets one side work; its rows, each time that they have changed."""
    if not side.loaded:
        yield {side.name: {"error": side.failure() or "it was not loaded in time"}}
        return
    side.barrier.touch()
    before: dict[str, Any] = {}
    while True:
        ended = side.ended
        side.look()
        rows = side.found()
        if rows != before:
            yield rows
        before = rows
        if ended or time.monotonic() > deadline:
            break
        time.sleep(POLL_S)
    if (failure := side.failure()) is not None:
        yield {side.name: {"error": failure}}
    elif not ended:
        yield {side.name: {"error": "it did not end in time"}}


def until(holds: Any, deadline: float) -> None:
    """Waits until `holds()`, or the deadline."""
    while not holds() and time.monotonic() < deadline:
        time.sleep(POLL_S)
