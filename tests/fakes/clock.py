"""An event loop whose time is virtual: waits cost nothing, and time-outs happen exactly when they should.

`run(main)` runs a coroutine as `asyncio.run` does. While something is ready it runs at once; when everything waits,
time jumps to the next timer. When nothing is left to wait for, the loop would hang for ever: that is a `Deadlock`.
Threads are not used: `asyncio.to_thread` runs its function inline.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(AssertionError):
    """Every task waits, and no timer or event can wake one."""


class Crashed(Exception):
    """The process that ran the loop is gone (`crash`)."""


def crash() -> None:
    """Ends the running loop as a kill ends its process: whatever is under way gets no further."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.crashed = True


class _Selector(selectors.SelectSelector):
    """Jumps the loop's time instead of sleeping."""

    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[Any]:
        if self.loop.crashed:
            self.loop.crashed = False
            raise Crashed
        if timeout is None:
            raise Deadlock("every task waits for another")
        self.loop.now += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module's head. `now`: virtual seconds since the loop began."""

    def __init__(self) -> None:
        self.now, self.crashed = 0.0, False
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Runs the function inline; its result or error is the future's."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def run(main: Coroutine[Any, Any, T], loop: VirtualLoop | None = None) -> T:
    """The coroutine's result, in virtual time; tasks that it leaves behind are cancelled."""
    loop = loop or VirtualLoop()
    try:
        return loop.run_until_complete(main)
    finally:
        loop.run_until_complete(_cancel(asyncio.all_tasks(loop)))
        loop.close()


async def _cancel(left: set[asyncio.Task[Any]]) -> None:
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
