"""Calls that may never return, such as those to a mounted disk that hangs: each runs in its own daemon thread.

A thread pool would lose a thread to each of them, and Python waits for a pool's threads when it exits.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

T = TypeVar("T")


class OwnThread(Executor):
    """Runs each call in its own daemon thread, so a call that never returns does not block process exit."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        threading.Thread(target=_answer, args=(future, fn, args, kwargs), daemon=True).start()
        return future


async def answered(timeout_s: float, late: str, call: Callable[..., T], *arguments: Any) -> T:
    """The result of a call in its own thread. TimeoutError with the text `late` if it takes longer than `timeout_s`."""
    answer = asyncio.get_running_loop().run_in_executor(OwnThread(), call, *arguments)
    if not (await asyncio.wait({answer}, timeout=timeout_s))[0]:
        raise TimeoutError(late)
    return await answer


def _answer(future: Future[T], fn: Callable[..., T], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    try:
        future.set_result(fn(*args, **kwargs))
    except BaseException as error:  # the caller's to judge
        future.set_exception(error)
