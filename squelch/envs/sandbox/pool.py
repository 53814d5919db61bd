"""A pool of warm isolated interpreters, which runs programs in them.

Invariants: each interpreter is used once and killed after its program. Only the pool's own thread starts interpreters:
the kernel ends a child with the thread that started it, so this thread lives as long as the process. A program's tests
run one at a time, in order, and a test without a reply has failed. Results count only if the image was whole when the
program had ended and the launcher was alive; otherwise the program runs again, `ATTEMPTS` times at most.

A caller waits for a warm interpreter at most `START_S`, and for a reply at most 4 times the test's wall-time limit. The
pool's thread waits for room in the pool without a time-out; it is a daemon.
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

from squelch.envs.sandbox.backends import START_S, Backend, choose, kernel_limits
from squelch.envs.sandbox.cgroup import MemoryGroups
from squelch.envs.sandbox.image import Watch
from squelch.envs.sandbox.interpreter import Interpreter, Late, Lost, Reply
from squelch.envs.sandbox.limits import ERROR_BYTES, Limits, SandboxConfig

Outcome = Literal["finished", "failed", "killed", "late", "flood", "lost", "unbegun"]
ATTEMPTS = 3
"""Number of interpreters tried for one program (a waiting interpreter may have been killed, e.g. for lack of memory),
and of runs of one program whose results do not count."""
MEMORY_SLACK = 96 * 2**20  # bytes that a group allows in addition to the program's memory: harness, scratch files


@dataclass(frozen=True)
class Question:
    """The input of one test: the program's standard input, or the arguments of the call."""

    stdin: str = ""
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Run:
    """The outcome of a program on one question.

    `finished`: it ended by itself with exit code 0; `failed`: it ended with another exit code, as after an exception;
    `killed`: a signal ended it; `late`: it reached the wall-time limit; `flood`: it wrote more than its limit; `lost`:
    its sandbox broke down; `unbegun`: the time for all tests was over before the test started.
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
        self._starter = backend.starter()
        self._watch = Watch(backend.image)
        self._groups = MemoryGroups()
        self._waiting: collections.deque[Interpreter] = collections.deque()
        self._failure: BaseException | None = None
        self._closed = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        atexit.register(self.close)

    @property
    def missing(self) -> tuple[str, ...]:
        """Limits that cannot be enforced on this machine."""
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
        """Runs the program on each question in turn; with `function`, calls that function of the program.

        Only the program's own time counts against its limits, not the time until an interpreter is available. Raises
        RuntimeError if no interpreter can be had, or the image changes during every attempt.
        """
        for _ in range(ATTEMPTS):
            attempt = _Attempt(self, program, limits, function, prelude)
            runs = attempt.run(questions)
            if attempt.generations <= {self._watch.check()} and not attempt.orphaned:
                return runs
        raise RuntimeError(f"sandbox: its image or its launcher did not last in {ATTEMPTS} attempts at one program")

    def take(self) -> Interpreter:
        """A ready interpreter for one program; the caller kills it. Raises RuntimeError if none becomes ready."""
        deadline, reason, attempts = time.monotonic() + START_S, "", 0
        while attempts < ATTEMPTS:
            interpreter = self._next(deadline)
            if interpreter.generation != self._watch.generation or interpreter.process.orphaned:
                interpreter.kill()
                continue
            attempts += 1
            try:
                interpreter.wait_ready(deadline)
                return interpreter
            except (Late, Lost) as error:
                interpreter.kill()
                reason = str(error) or f"it was not ready within {START_S:g} s"
                self._watch.check()
        raise RuntimeError(f"sandbox: an interpreter of {self.backend.name}: {reason}")

    def _next(self, deadline: float) -> Interpreter:
        """The interpreter that has waited longest."""
        with self._changed:
            if self._thread is None:  # started at first use: code that only lists tasks needs no interpreters
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
        """Bound the memory of all processes that the interpreter starts; returns the group, which the caller passes to
        `leave_group` after the interpreter's death."""
        if interpreter.pid is None:
            return None
        return self._groups.acquire(interpreter.pid, limits.memory_mb * 2**20 + MEMORY_SLACK)

    def leave_group(self, group: Path | None) -> None:
        """Releases the group of an interpreter that has ended."""
        self._groups.release(group)

    def close(self) -> None:
        """Kill the waiting interpreters and start no more."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            waiting, self._waiting = list(self._waiting), collections.deque()
            thread = self._thread
            self._changed.notify_all()
        for interpreter in waiting:
            interpreter.kill()
        if thread is not None:
            thread.join(START_S)  # it closes the starter
        self._groups.close()

    def _refill(self) -> None:
        failure: Exception | None = None
        try:
            self._watch.check()
            while self._start_one():
                pass
        except (OSError, RuntimeError) as error:  # present callers get the error; later callers start another attempt
            failure = error
        self._starter.close()
        if failure is not None:
            with self._changed:
                self._failure, self._thread = failure, None
                self._changed.notify_all()

    def _start_one(self) -> bool:
        """Waits for room and starts an interpreter; False once the pool is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._waiting) < self._warm)
            if self._closed:
                return False
        started = Interpreter(self._starter, self._watch.generation)
        with self._changed:
            if not self._closed:
                self._waiting.append(started)
                self._changed.notify_all()
                return True
        started.kill()
        return False


class _Attempt:
    """One attempt at all questions. `generations`: of the images that its interpreters saw; `orphaned`: one of them
    ended with its launcher."""

    def __init__(self, pool: Pool, program: str, limits: Limits, function: str | None, prelude: str) -> None:
        self._pool, self._limits = pool, limits
        self._job = (program, prelude, function)
        self.generations: set[int] = set()
        self.orphaned = False

    def run(self, questions: Sequence[Question]) -> list[Run]:
        """Asks the questions in order, with as many interpreters as it takes."""
        runs: list[Run] = []
        left_s = self._limits.total_s
        while len(runs) < len(questions):
            if left_s <= 0:
                return runs + [Run("unbegun")] * (len(questions) - len(runs))
            with _Session(self._pool, self._job, self._limits) as session:
                self.generations.add(session.interpreter.generation)
                for question in questions[len(runs) :]:
                    runs.append(session.ask(question, min(self._limits.wall_s, left_s)))
                    left_s -= runs[-1].seconds
                    if session.over or left_s <= 0:
                        break
                self.orphaned |= session.interpreter.process.orphaned
        return runs


class _Session:
    """One interpreter with its program, until the interpreter is late or lost, or all tests have run."""

    def __init__(self, pool: Pool, job: tuple[str, str, str | None], limits: Limits) -> None:
        self._pool, self._job, self._limits = pool, job, limits
        self._begun = False
        self.over = False

    def __enter__(self) -> _Session:
        self.interpreter = self._pool.take()
        try:
            self._group = self._pool.enter_group(self.interpreter, self._limits)
        except RuntimeError:
            self.interpreter.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.interpreter.kill()
        self._pool.leave_group(self._group)

    def ask(self, question: Question, limit_s: float) -> Run:
        """Runs one test, with at most `limit_s` seconds of its own time."""
        started = time.monotonic()
        try:
            if not self._begun:
                self.interpreter.begin(*self._job, kernel_limits(self._limits, self._pool.backend.isolates))
                self._begun = True
            stdin = question.stdin.encode("utf-8", "replace")
            return _read(self.interpreter.run(stdin, question.arguments, limit_s), self._limits)
        except Late as late:
            self.over = True
            return Run("late", seconds=max(late.seconds, limit_s))
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
    """This process's pool for that configuration; created at first use, closed at exit."""
    return _pool_of(os.getpid(), config.warm, config.allow_unsafe)
