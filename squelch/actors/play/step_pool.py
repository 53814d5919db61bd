"""Runs environment calls in threads, so that they do not block the event loop. All calls of one tick of the event loop
are handed over together; a call that hangs affects no other call.

Invariants:

- Each call's result, or its time-out, is delivered once, on the event loop. Results of calls that one thread runs one
  after another are delivered together; each call counts as progress when it ends.
- A call that runs longer than `timeout_s` is given up, and its caller gets TimeoutError. Python cannot stop a thread,
  so the thread is abandoned: it ends if the call returns, and it does not keep the process alive. The calls queued
  behind it move to a new thread. Time is counted from the start of the call itself, not of the calls before it.
- A call whose caller has gone before it starts is not made.
- Calls handed over together may run in any thread, one after another: they must not share state.

A caller waits for its own call for at most `timeout_s` after the call has started.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from squelch.actors.process.spans import Spans
from squelch.kit.process.progress_marks import Marks, Progress

T = TypeVar("T")


class CallFailed(Exception):
    """The text of an error that a call raised. Only the text is kept, because a future does not accept some
    exceptions."""


@dataclass
class _Call:
    function: Callable[[], Any]
    future: asyncio.Future[Any]
    value: Any = None
    error: str | None = None

    def run(self) -> None:
        """Runs the function, in a step thread, unless its caller has gone meanwhile."""
        if self.future.done():
            return
        try:
            self.value = self.function()
        except BaseException as error:  # an environment's SystemExit must not end the thread silently
            self.error = f"{type(error).__name__}: {error}"

    def deliver(self) -> None:
        """Passes the result to the caller, on the event loop."""
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.value)
        else:
            self.future.set_exception(CallFailed(self.error))


@dataclass
class _Batch:
    """Calls that one thread runs one after another. `lock` guards all fields but `calls`."""

    calls: list[_Call]
    position: int = 0
    began: float = 0.0
    finished: bool = False
    abandoned: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def work(self, ended: Callable[[], None]) -> bool:
        """Run all calls, with `ended` after each; returns False if the batch was abandoned meanwhile."""
        self._at(0)
        for position, call in enumerate(self.calls, start=1):
            call.run()
            if not self._at(position):
                return False
            ended()
        return True

    def _at(self, position: int) -> bool:
        """Notes that the calls before `position` have ended; returns False if the batch was abandoned meanwhile."""
        with self.lock:
            if not self.abandoned:
                self.position, self.began = position, time.monotonic()
                self.finished = position == len(self.calls)
            return not self.abandoned


class StepPool:
    """Pool of `num_threads` threads, each of which runs a share of a tick's calls. All calls of `run` must come from
    one event loop."""

    def __init__(self, timeout_s: float, num_threads: int = 1) -> None:
        self.num_abandoned = 0
        """Number of threads abandoned so far."""
        self.spans = Spans()
        """Intervals in which environments were stepped."""
        self._timeout_s = timeout_s
        self._num_threads = num_threads
        self._pending: list[_Call] = []
        self._marks, self._under_way = Marks(), 0
        self._batches: queue.SimpleQueue[_Batch | None] = queue.SimpleQueue()
        self._started = False

    async def run(self, function: Callable[[], T]) -> T:
        """The function's result. Raises TimeoutError if it runs for `timeout_s`, and CallFailed if it raises."""
        loop = asyncio.get_running_loop()
        if not self._started:
            self._started = True
            for _ in range(self._num_threads):
                self._start_thread(loop)
        if not self._pending:
            loop.call_soon(self._hand_over, loop)
        future: asyncio.Future[T] = loop.create_future()
        self._pending.append(_Call(function, future))
        if not self._under_way:
            self._marks.begin()
        self._under_way += 1
        try:
            return await future
        finally:
            self._under_way -= 1

    def progress(self) -> Progress:
        """A mark for each call that ended or was given up; busy while one is under way."""
        return self._marks.seen(self._under_way > 0)

    def close(self) -> None:
        """Let idle threads end; an abandoned thread ends when its call returns."""
        for _ in range(self._num_threads):
            self._batches.put(None)

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        calls, self._pending = self._pending, []
        for share in (calls[first :: self._num_threads] for first in range(self._num_threads)):
            if share:
                self._enqueue(loop, _Batch(share))

    def _enqueue(self, loop: asyncio.AbstractEventLoop, batch: _Batch) -> None:
        self._batches.put(batch)
        loop.call_later(self._timeout_s, self._watch, loop, batch)

    def _start_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        threading.Thread(target=self._work, args=(loop,), daemon=True, name="environment-steps").start()

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        while (batch := self._batches.get()) is not None:
            started = time.time()
            whole = batch.work(self._marks.add)
            self.spans.add(started, time.time())
            if not whole:
                return
            try:
                loop.call_soon_threadsafe(_deliver, batch.calls)
            except RuntimeError:  # the loop is closed, so no caller waits
                return

    def _watch(self, loop: asyncio.AbstractEventLoop, batch: _Batch) -> None:
        """Abandon the batch if its present call has run for `timeout_s`; otherwise check again when it would have."""
        with batch.lock:
            if batch.finished:
                return
            running = time.monotonic() - batch.began if batch.began else 0.0
            if running < self._timeout_s:
                loop.call_later(self._timeout_s - running, self._watch, loop, batch)
                return
            batch.abandoned = True
            late = batch.position
        self._replace(loop, batch, late)

    def _replace(self, loop: asyncio.AbstractEventLoop, batch: _Batch, late: int) -> None:
        self.num_abandoned += 1
        self._marks.add()
        _deliver(batch.calls[:late])
        future = batch.calls[late].future
        if not future.done():
            future.set_exception(TimeoutError(f"call still running after {self._timeout_s:g} s"))
        self._start_thread(loop)
        if batch.calls[late + 1 :]:
            self._enqueue(loop, _Batch(batch.calls[late + 1 :]))


def _deliver(calls: list[_Call]) -> None:
    for call in calls:
        call.deliver()
