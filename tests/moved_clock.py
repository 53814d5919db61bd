"""A clock that a test moves on: bounds are ten seconds, which healthy work does not take on a busy machine either, and
what hangs is late at once.

    clock = MovedClock(step_pool)       # `time` in this module follows it, as do the timers of its event loop
    clock.run(main())                   # as `asyncio.run`
    clock.move(11.0)                    # from another thread, or in the loop itself
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from types import ModuleType, SimpleNamespace
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
BOUND_S, PAST_IT_S = 10.0, 11.0
"""A bound of healthy work, and by how much the clock is moved for what hangs."""


class MovedClock:
    """See the module's head. `patch` puts it into the modules."""

    def __init__(self, patch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
        self.ahead = 0.0
        for module in modules:
            patch.setattr(module, "time", SimpleNamespace(monotonic=self.monotonic, time=time.time))

    def monotonic(self) -> float:
        """Seconds of the moved clock."""
        return time.monotonic() + self.ahead

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result."""
        with asyncio.Runner(loop_factory=lambda: _Loop(self)) as runner:
            self._loop = runner.get_loop()
            return runner.run(main)

    def move(self, seconds: float) -> None:
        """Moves the clock on. In another thread than the loop's it returns once the timers that are due have run."""
        if threading.current_thread() is threading.main_thread():
            self.ahead += seconds
            return
        ran = threading.Event()

        def moved() -> None:
            self.ahead += seconds
            # timers that are due run in the loop's next round, behind what is ready then
            self._loop.call_soon(lambda: self._loop.call_soon(ran.set))

        self._loop.call_soon_threadsafe(moved)
        assert ran.wait(180)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, clock: MovedClock) -> None:
        self._clock_of_the_test = clock
        super().__init__()

    def time(self) -> float:
        return self._clock_of_the_test.monotonic()
