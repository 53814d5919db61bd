"""Warm isolated interpreters, and programs run in them.

Invariants: an interpreter is taken once and killed after its program; only the pool's own thread starts them (the
kernel ends a child with the thread that started it, so that thread lives as long as the process); a program's tests are
asked one at a time, in order, and a test that got no reply has failed.

Who waits: a caller for a warm interpreter, at most `START_S`; for a reply, at most the test's wall-time limit. The
thread for room in the pool, without bound; it is a daemon.
"""

from __future__ import annotations

import atexit
import collections
import functools
import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from envs.sandbox.backends import START_S, Backend, choose, kernel_limits
from envs.sandbox.cgroup import MemoryGroups
from envs.sandbox.interpreter import Interpreter, Late, Lost, Reply
from envs.sandbox.limits import ERROR_BYTES, Limits, SandboxConfig

Outcome = Literal["finished", "failed", "killed", "late", "flood", "lost", "unbegun"]
ATTEMPTS = 3
"""Interpreters tried for one program: one that waited may have been killed for lack of memory, say."""
MEMORY_SLACK = 96 * 2**20  # of a group beyond the program's own memory: harness, scratch files


@dataclass(frozen=True)
class Question:
    """One test as a program sees it: what it reads, or the arguments of the call."""

    stdin: str = ""
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Run:
    """How a program did on one question.

    `finished`: it ended by itself with exit code 0; `failed`: with another one, as after an exception; `killed`: by a
    signal; `late`: it ran into the wall-time limit; `flood`: it wrote more than it may; `lost`: its sandbox broke down;
    `unbegun`: the time for all tests was over.
    """

    outcome: Outcome
    output: bytes = b""
    error: str = ""
    value: bytes | None = None
    seconds: float = 0.0


class Pool:
    """Runs programs. Safe to use from several threads."""

    def __init__(self, backend: Backend, warm: int) -> None:
        self.backend = backend
        self._warm = warm
        self._groups = MemoryGroups()
        self._waiting: collections.deque[Interpreter] = collections.deque()
        self._failure: BaseException | None = None
        self._closed = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        atexit.register(self.close)

    @property
    def missing(self) -> tuple[str, ...]:
        """Limits that could not be had here."""
        if self._groups.available:
            return self.backend.missing
        return (*self.backend.missing, f"a bound on the memory of all processes together ({self._groups.reason})")

    def run(
        self,
        program: str,
        questions: Sequence[Question],
        limits: Limits,
        function: str | None = None,
        prelude: str = "",
    ) -> list[Run]:
        """The program on each question in turn; with `function`, that function of it is called.

        Only a program's own time counts against its limits, not that in which an interpreter is waited for.
        """
        runs: list[Run] = []
        left_s = limits.total_s
        while len(runs) < len(questions):
            if left_s <= 0:
                return runs + [Run("unbegun")] * (len(questions) - len(runs))
            with _Session(self, program, limits, function, prelude) as session:
                for question in questions[len(runs) :]:
                    runs.append(session.ask(question, min(limits.wall_s, left_s)))
                    left_s -= runs[-1].seconds
                    if session.over or left_s <= 0:
                        break
        return runs

    def take(self) -> Interpreter:
        """A ready interpreter, for one program; the caller kills it. RuntimeError when none gets ready."""
        deadline, reason = time.monotonic() + START_S, ""
        for _ in range(ATTEMPTS):
            interpreter = self._next(deadline)
            try:
                interpreter.wait_ready(deadline)
                return interpreter
            except (Late, Lost) as error:
                interpreter.kill()
                reason = str(error) or f"it was not ready within {START_S:g} s"
        raise RuntimeError(f"sandbox: an interpreter of {self.backend.name}: {reason}")

    def _next(self, deadline: float) -> Interpreter:
        """The one that has waited longest."""
        with self._changed:
            if self._thread is None:  # at first use: who only looks at tasks needs no interpreters
                self._failure = None
                self._thread = threading.Thread(target=self._refill, daemon=True, name="sandbox-pool")
                self._thread.start()
            left_s = max(0.0, deadline - time.monotonic())
            if not self._changed.wait_for(lambda: self._waiting or self._failure or self._closed, left_s):
                raise RuntimeError(f"sandbox: the pool started no interpreter within {START_S:g} s")
            if not self._waiting:
                why = self._failure or "the pool is closed"
                raise RuntimeError(f"sandbox: interpreters cannot be started: {why}")
            interpreter = self._waiting.popleft()
            self._changed.notify_all()
        return interpreter

    def enter_group(self, interpreter: Interpreter, limits: Limits) -> Path | None:
        """Bound the memory of all that the interpreter starts; returns the group to be released after its death."""
        if interpreter.pid is None:
            return None
        return self._groups.acquire(interpreter.pid, limits.memory_mb * 2**20 + MEMORY_SLACK)

    def leave_group(self, group: Path | None) -> None:
        """After the interpreter's death."""
        self._groups.release(group)

    def close(self) -> None:
        """Kill what waits and start no more."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            waiting, self._waiting = list(self._waiting), collections.deque()
            self._changed.notify_all()
        for interpreter in waiting:
            interpreter.kill()
        self._groups.close()

    def _refill(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed or len(self._waiting) < self._warm)
                    if self._closed:
                        return
                started = Interpreter(self.backend.command)
                with self._changed:
                    if not self._closed:
                        self._waiting.append(started)
                        self._changed.notify_all()
                        continue
                started.kill()
                return
        except OSError as error:  # told to those who wait now; who comes later has it tried again
            with self._changed:
                self._failure, self._thread = error, None
                self._changed.notify_all()


class _Session:
    """One interpreter with its program, until it is late, lost, or out of tests."""

    def __init__(self, pool: Pool, program: str, limits: Limits, function: str | None, prelude: str) -> None:
        self._pool, self._limits = pool, limits
        self._job = (program, prelude, function)
        self._begun = False
        self.over = False

    def __enter__(self) -> _Session:
        self._interpreter = self._pool.take()
        try:
            self._group = self._pool.enter_group(self._interpreter, self._limits)
        except RuntimeError:
            self._interpreter.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._interpreter.kill()
        self._pool.leave_group(self._group)

    def ask(self, question: Question, limit_s: float) -> Run:
        started = time.monotonic()
        try:
            if not self._begun:
                self._interpreter.begin(*self._job, kernel_limits(self._limits, self._pool.backend.own_namespace))
                self._begun = True
            stdin = question.stdin.encode("utf-8", "replace")
            return _read(self._interpreter.run(stdin, question.arguments, started + limit_s), self._limits)
        except Late:
            self.over = True
            return Run("late", seconds=time.monotonic() - started)
        except Lost as error:
            self.over = True
            return Run("lost", error=str(error), seconds=time.monotonic() - started)


def _read(reply: Reply, limits: Limits) -> Run:
    error = reply.error[-ERROR_BYTES:].decode("utf-8", "replace")
    outcome: Outcome = "failed" if reply.status else "finished"
    run = Run(outcome, reply.output, error, reply.value, reply.seconds)
    if os.WIFSIGNALED(reply.status):
        name = signal.strsignal(os.WTERMSIG(reply.status)) or "a signal"
        return replace(run, outcome="killed", error=error or name)
    if len(reply.output) > limits.output_kb * 2**10 or len(reply.value or b"") > limits.output_kb * 2**10:
        return replace(run, outcome="flood", output=b"", value=None)
    return run


@functools.cache
def _pool_of(process: int, warm: int, allow_unsafe: bool) -> Pool:
    return Pool(choose(allow_unsafe), warm)


def shared_pool(config: SandboxConfig) -> Pool:
    """This process's pool for that configuration; made on first use, closed at exit."""
    return _pool_of(os.getpid(), config.warm, config.allow_unsafe)
