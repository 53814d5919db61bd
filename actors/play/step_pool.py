"""Environment calls off the event loop. All calls of a tick are handed over together; a hung call costs only itself.

Invariants:

- A call's result is delivered on the event loop, once, or its time-out is.
- A call that runs longer than `timeout_s` is given up: Python cannot stop a thread, so its thread is abandoned (it ends
  when the call ever returns, and never keeps the process alive), the calls queued behind it move to a new thread, and
  its caller gets TimeoutError. The clock runs from the call's own start, so slow neighbours are not its fault.
- Calls handed over together may run in any thread, one after another: they must not share state.

Who waits: the caller, for its own call, at most `timeout_s` once that has begun.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from actors.process.spans import Spans

T = TypeVar("T")


class CallFailed(Exception):
    """What a call raised, as text: its exception may be of any kind, and some cannot be put into a future."""


@dataclass
class _Call:
    function: Callable[[], Any]
    future: asyncio.Future[Any]
    value: Any = None
    error: str | None = None

    def run(self) -> None:
        try:
            self.value = self.function()
        except BaseException as error:  # SystemExit of an environment must not end the thread unseen
            self.error = f"{type(error).__name__}: {error}"

    def deliver(self) -> None:
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.value)
        else:
            self.future.set_exception(CallFailed(self.error))


@dataclass
class _Batch:
    """Calls that one thread works through. `lock` guards all but `calls`."""

    calls: list[_Call]
    position: int = 0
    began: float = 0.0
    finished: bool = False
    abandoned: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def work(self) -> bool:
        """Run all calls; False when the batch was taken away meanwhile."""
        for index, call in enumerate(self.calls):
            with self.lock:
                if self.abandoned:
                    return False
                self.position, self.began = index, time.monotonic()
            call.run()
        with self.lock:
            self.finished = not self.abandoned
            return self.finished


class StepPool:
    """`run` from one event loop; `num_threads` threads work, each on a share of a tick's calls."""

    def __init__(self, timeout_s: float, num_threads: int = 1) -> None:
        self.num_abandoned = 0
        """Threads given up so far."""
        self.spans = Spans()
        """When environments were stepped."""
        self._timeout_s = timeout_s
        self._num_threads = num_threads
        self._pending: list[_Call] = []
        self._batches: queue.SimpleQueue[_Batch | None] = queue.SimpleQueue()
        self._started = False

    async def run(self, function: Callable[[], T]) -> T:
        """The function's value. Raises TimeoutError after `timeout_s` of running, CallFailed when it raised."""
        loop = asyncio.get_running_loop()
        if not self._started:
            self._started = True
            for _ in range(self._num_threads):
                self._start_thread(loop)
        if not self._pending:
            loop.call_soon(self._hand_over, loop)
        future: asyncio.Future[T] = loop.create_future()
        self._pending.append(_Call(function, future))
        return await future

    def close(self) -> None:
        """Let idle threads end; abandoned ones end when their call does."""
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
            whole = batch.work()
            self.spans.add(started, time.time())
            if not whole:
                return
            try:
                loop.call_soon_threadsafe(_deliver, batch.calls)
            except RuntimeError:  # the loop is closed: nobody waits any more
                return

    def _watch(self, loop: asyncio.AbstractEventLoop, batch: _Batch) -> None:
        """Give the batch's running call up once it has run for `timeout_s`; otherwise look again when it would have."""
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
