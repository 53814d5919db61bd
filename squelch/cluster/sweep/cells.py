"""Runs the cells of a sweep, one after another or in parallel; each cell can be resumed. Also writes the report.

    actor        waits for                 unblocked by              on time-out
    sweep        its cells, at most        a cell's process ends     a run bounds its own waits and names the late
                 `--parallel` at a time                              actor; the sweep sets no limit on a run's length
    stopped      the cells under way       the step in training      after STOP_TIMEOUT_S a cell is killed and named
    sweep                                  ends in each

Invariants:

- Keys, values, models, cluster and folders are checked before the first cell starts.
- A cell is a normal run, `squelch train CELL/config.yaml --resume` in its own process, in runs/<sweep>/<cell>. A
  finished cell is not started again; another cell continues from its last checkpoint, or starts if it has none.
- A cell's process holds a lock on its folder, so that no two sweeps run the same cell, even after a sweep was killed.
- A cell that crashes is resumed once, if it has a checkpoint. If it crashes again, or if the run itself decided to
  end, the cell is marked failed with its reason. The other cells continue.
- `sweep.json` is replaced atomically after every cell.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal

from squelch.cluster.config import RunConfig, dump
from squelch.cluster.kept_secrets import handed_on
from squelch.cluster.loop.persistence.state import check_folder
from squelch.cluster.runs.ending import EndCause, ending_of
from squelch.cluster.runs.folder import SUMMARY, RunFolder
from squelch.cluster.sweep.plan import Cell, Plan, check_folders, is_finished, started
from squelch.cluster.sweep.table import INTERVAL, Metrics, arm_metrics, cell_metrics, table_lines
from squelch.envs.environment_variables import CELL, without
from squelch.kit.base.disk import write_whole
from squelch.kit.base.errors import Fault, UserError, as_user_error
from squelch.kit.base.package import variables
from squelch.kit.process.signals import Signals, listening
from squelch.kit.process.terminal import remark, say, say_json
from squelch.kit.untrusted.files import open_own

STOP_TIMEOUT_S = 900.0
"""Seconds that a cell may take to finish its step and write its checkpoint after it was asked to stop."""
POLL_S = 0.5
ATTEMPTS = 2
LOG = "train.log"
REPORTS = ("report:", "no report:")
"""Beginnings of the line about a run's report, which is no statement about the run's end."""
LAST_BYTES = 2**16
"""Bytes at the end of a cell's log in which its last words are looked for."""
Status = Literal["pending", "running", "finished", "failed", "interrupted", "elsewhere"]


@dataclass(frozen=True)
class Outcome:
    """The state of a cell, and the reason of a failure, or of an end before the last step."""

    status: Status
    reason: str = ""


@dataclass(frozen=True)
class Ended:
    """The end of a cell's process: its exit code (negative: the signal that killed it) and the line that says why."""

    code: int
    last_words: str


class Sweep:
    """Runs the cells of a plan; see the module's docstring."""

    def __init__(self, plan: Plan, runner: ProcessRunner, parallel: int, say: Callable[[str], None]) -> None:
        self.plan, self.runner, self.parallel, self.say = plan, runner, parallel, say
        self.stopped_by = 0
        self.outcomes = {c.name: _finished(c.folder) or Outcome("pending") for c in plan.cells}
        self._metrics: dict[str, Metrics] = {}
        """Metrics of the finished cells by name, as far as they were read; they no longer change."""

    @property
    def open_cells(self) -> list[Cell]:
        """The cells that are not finished, in order."""
        return [cell for cell in self.plan.cells if self.outcomes[cell.name].status != "finished"]

    @property
    def finished(self) -> bool:
        """Whether every cell is finished."""
        return not self.open_cells

    async def run(self) -> None:
        """Runs the open cells, `parallel` at a time, in order."""
        queue = deque(self.open_cells)
        done = len(self.plan.cells) - len(queue)
        self.say(f"{len(self.plan.cells)} cells in {self.plan.folder}, {done} already finished")

        async def work() -> None:
            while queue and not self.stopped_by:
                await self._cell(queue.popleft())

        try:
            await asyncio.gather(*(work() for _ in range(self.parallel)))
        finally:
            if any(outcome.status == "running" for outcome in self.outcomes.values()):  # the sweep itself failed
                self.runner.interrupt()

    def stop(self, number: int) -> None:
        """Starts no further cell and asks the cells under way to end after their step; a second call, at once."""
        if not self.stopped_by:
            self.say("stopping: running cells finish their step and save a checkpoint; a second signal ends them now")
        self.stopped_by = number
        self.runner.interrupt()

    async def _cell(self, cell: Cell) -> None:
        self._mark(cell, Outcome("running"))
        saved = list(RunFolder(cell.folder).checkpoints())
        at = self.plan.cells.index(cell) + 1
        begun = f"continues after step {saved[-1]}" if saved else "starts"
        self.say(f"cell {at}/{len(self.plan.cells)} {cell.name} {begun}; squelch watch {cell.folder}")
        started = time.time()
        for attempt in range(1, ATTEMPTS + 1):
            outcome, crashed = await self._attempt(cell)
            if not (crashed and attempt < ATTEMPTS and RunFolder(cell.folder).checkpoints()):
                break
            self.say(f"cell {cell.name} crashed ({outcome.reason}); it is resumed from its last checkpoint")
        self._mark(cell, outcome)
        reason = f": {outcome.reason}" if outcome.reason else ""
        self.say(
            f"cell {at}/{len(self.plan.cells)} {cell.name} {outcome.status}{reason} ({time.time() - started:.0f} s)"
        )

    async def _attempt(self, cell: Cell) -> tuple[Outcome, bool]:
        """The outcome of one attempt, and whether the cell crashed (False if the run itself decided to end)."""
        before = RunFolder(cell.folder).store.stat(SUMMARY)
        try:
            ended = await self.runner.run(cell)
        except BlockingIOError:
            return Outcome("elsewhere", "another process runs this cell; repeat the command when it has ended"), False
        except OSError as error:
            return Outcome("failed", f"could not be started: {error}"), False
        if (outcome := _finished(cell.folder)) is not None:
            return outcome, False
        if self.stopped_by:
            return Outcome("interrupted", ended.last_words), False
        wrote = RunFolder(cell.folder).store.stat(SUMMARY) != before
        decided = ended.code == 2 or (wrote and not _failed(cell.folder))
        how = f"killed by {signal.Signals(-ended.code).name}" if ended.code < 0 else f"exit code {ended.code}"
        return Outcome("failed", f"{how}: {ended.last_words}" if ended.last_words else how), not decided

    def _mark(self, cell: Cell, outcome: Outcome) -> None:
        self.outcomes[cell.name] = outcome
        write_report(self.plan.folder, self.report())

    def report(self) -> dict[str, Any]:
        """The content of `sweep.json`."""
        plan, metrics = self.plan, self._metrics
        for cell in plan.cells:
            if cell.name not in metrics and self.outcomes[cell.name].status == "finished":
                metrics[cell.name] = cell_metrics(cell.folder)
        return {
            "sweep": plan.name,
            "recipe": plan.recipe,
            "overrides": plan.overrides,
            "finished": self.finished,
            "interval": INTERVAL,
            "arms": arm_metrics(plan, metrics),
            "cells": [self._cell_report(cell, metrics) for cell in plan.cells],
        }

    def _cell_report(self, cell: Cell, metrics: dict[str, Metrics]) -> dict[str, Any]:
        return {
            "cell": cell.name,
            "arm": cell.arm.label,
            "seed": cell.seed,
            "folder": str(cell.folder),
            **asdict(self.outcomes[cell.name]),
            "figures": metrics.get(cell.name, {}),
        }


def _finished(folder: Path) -> Outcome | None:
    """The outcome of a run that has nothing left to do; None if it has."""
    if not is_finished(folder):
        return None
    ending = ending_of(RunFolder(folder).summary() or {})
    return Outcome("finished", ending.text if ending else "")


def _failed(folder: Path) -> bool:
    """Whether an error ended the run, as its summary says."""
    ending = ending_of(RunFolder(folder).summary() or {})
    return ending is not None and ending.cause is EndCause.FAILED


def write_report(folder: Path, report: dict[str, Any]) -> None:
    """Writes `sweep.json` completely, or leaves it unchanged."""
    write_whole(folder / "sweep.json", json.dumps(report, indent=2, allow_nan=False) + "\n")


class ProcessRunner:
    """Runs cells as `squelch train` processes on this machine. Each process leads its own session, so that Ctrl-C at
    the terminal reaches only the sweep, which forwards it once."""

    def __init__(self) -> None:
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._asked_at: float | None = None

    async def run(self, cell: Cell) -> Ended:
        """Runs the cell's process to its end.

        Raises:
            BlockingIOError: another process runs this cell.
            OSError: the process cannot be started.
        """
        cell.folder.mkdir(parents=True, exist_ok=True)
        with open_own(cell.folder / ".lock") as lock, open_own(cell.folder / LOG) as log:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            write_whole(cell.folder / "config.yaml", dump(started(cell)))
            start = log.seek(0, os.SEEK_END)
            process = await self._start(cell, lock, log)
            self._processes[cell.name] = process
            if self._asked_at is not None:  # asked to stop during the start
                _send(process, signal.SIGINT)
            try:
                code = await self._wait(process)
            finally:
                del self._processes[cell.name]
            log.seek(max(start, log.seek(0, os.SEEK_END) - LAST_BYTES))
            return Ended(code, last_words(log.read().decode(errors="replace")))

    async def _start(self, cell: Cell, lock: IO[bytes], log: IO[bytes]) -> asyncio.subprocess.Process:
        command = ["-u", "-P", "-m", "squelch.cluster.cli", "train", str(cell.folder / "config.yaml"), "--resume"]
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**without(variables(), CELL), **handed_on()},
            start_new_session=True,
            pass_fds=(lock.fileno(),),
        )

    async def _wait(self, process: asyncio.subprocess.Process) -> int:
        """Waits for the end of the process and returns its exit code; kills it STOP_TIMEOUT_S after a stop request."""
        ending = asyncio.ensure_future(process.wait())
        while not ending.done():
            await asyncio.wait({ending}, timeout=POLL_S)
            if self._asked_at is not None and time.monotonic() - self._asked_at > STOP_TIMEOUT_S:
                _send(process, signal.SIGKILL)
        return ending.result()

    def interrupt(self) -> None:
        """Asks every cell under way to end after its step, by SIGINT; a second call asks them to end at once."""
        self._asked_at = self._asked_at or time.monotonic()
        for process in self._processes.values():
            _send(process, signal.SIGINT)


def _send(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Sends a signal to a process that may have ended. asyncio's own `send_signal` polls the process before, and so may
    take its exit code from the loop, which then reports 255."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


def last_words(output: str) -> str:
    """The line of a run's output that says why it ended; else the last line."""
    stripped = [line.strip() for line in output.splitlines()]
    lines = [line for line in stripped if line and not line.startswith(REPORTS)]
    reported = [line for line in lines if line.startswith(("squelch:", "failed:", "ended after step"))]
    return (reported or lines or [""])[-1]


def prepare(configs: Sequence[RunConfig], parallel: int, say: Callable[[str], None]) -> None:
    """Checks the cells' models (a tiny policy is built once for all cells that use it) and the cluster.

    Raises:
        UserError: a model cannot be used, or the cluster cannot be reached or is too small for `parallel` cells.
    """
    from squelch.cluster.fleet.bootstrap import check_address, check_fixed_scorer, check_machine, check_scoring
    from squelch.cluster.loop.initial_policy import prepare_model

    for config in configs[:1]:
        check_address(config)  # first, because a warm-up may take minutes
    if configs and (configs[0].cluster.address or os.environ.get("RAY_ADDRESS")):
        _check_cluster(configs, parallel, say)
    parts = {"model", "learner", "environment", "environments", "sampling", "rollout", "scorer"}
    alike = {"train_seed": 0, "validation_seed": 0}
    unlike: dict[str, RunConfig] = {}
    for config in configs:
        same = config.with_each(lambda entry: entry.environment.model_copy(update=alike))
        tree = same.model_dump(mode="json", include=parts)
        unlike.setdefault(json.dumps(tree, sort_keys=True), config)
    for config in unlike.values():
        check_machine(config)
        check_scoring(config)
    for config in unlike.values():
        with as_user_error():
            prepare_model(config, say, check=partial(check_fixed_scorer, config))


def _check_cluster(configs: Sequence[RunConfig], parallel: int, say: Callable[[str], None]) -> None:
    """Joins the cluster briefly; UserError if it cannot be reached, or is too small for `parallel` cells and no
    autoscaler can enlarge it: each cell asks that for its own part."""
    import ray

    from squelch.cluster.fleet.bootstrap import connect, disconnect
    from squelch.cluster.fleet.demand import KINDS, needed
    from squelch.cluster.fleet.placement import may_grow

    try:
        largest = max(configs, key=lambda config: needed(config, "CPU"))
        connect(largest, say)
        if may_grow(largest):
            return
        resources = ray.cluster_resources()
    finally:
        disconnect()
    for kind in KINDS:
        need, have = (
            min(parallel, len(configs)) * max(needed(config, kind) for config in configs),
            resources.get(kind, 0),
        )
        if need > have:
            raise UserError(
                f"--parallel {parallel}: the cells need {need:g} {kind}s at once and the cluster has {have:g}"
            )


def execute(plan: Plan, parallel: int, as_json: bool = False) -> int:
    """Checks, runs and reports a plan; returns the exit code."""
    output = remark if as_json else say
    check_folders(plan)
    check_folder(plan.folder)
    sweep = Sweep(plan, ProcessRunner(), parallel, output)
    with listening() as signals:
        signals.last_words = lambda number: output(
            f"stopped by {number.name}, at once; cells under way go on. The same command continues the sweep"
        )
        prepare([cell.config for cell in sweep.open_cells], parallel, output)
        try:
            asyncio.run(_stoppable(sweep, signals))
            report = sweep.report()
            write_report(plan.folder, report)
        except OSError as error:
            raise Fault(
                f"{plan.folder}: {error}; running cells were asked to end; the same command continues the sweep"
            ) from error
    if as_json:
        say_json(report)
    else:
        for line in table_lines(report["arms"]):
            say(line)
        say(f"the paper's figures of these runs: squelch report {plan.folder}")
    return _close(sweep, output)


async def _stoppable(sweep: Sweep, signals: Signals) -> None:
    """Runs the sweep; each of the first two signals is passed on to the cells, a third ends the sweep alone."""
    loop = asyncio.get_running_loop()

    def stop(number: int) -> None:
        if len(signals.arrived) == 1:
            signals.next = stop
        loop.call_soon_threadsafe(sweep.stop, number)

    with signals.answering(stop):
        await sweep.run()


def _close(sweep: Sweep, say: Callable[[str], None]) -> int:
    for cell in sweep.open_cells:
        outcome = sweep.outcomes[cell.name]
        say(f"{cell.name}: {outcome.status}" + (f", {outcome.reason} ({cell.folder / LOG})" if outcome.reason else ""))
    if sweep.finished:
        say(f"all {len(sweep.plan.cells)} cells finished: {sweep.plan.folder / 'sweep.json'}")
        return 0
    say(f"{len(sweep.open_cells)} of {len(sweep.plan.cells)} cells are not finished; the same command continues them")
    return 128 + sweep.stopped_by if sweep.stopped_by else 1
