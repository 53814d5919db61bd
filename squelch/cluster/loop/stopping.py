"""When and why a run ends: by one of its own rules with the step in training, or because it is asked to.
The exit code, and what its user reads then: `cluster.loop.exit_code`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from squelch.cluster.runs.ending import EndCause, Ending
from squelch.kit.process.signals import Interrupted, Signals

T = TypeVar("T")


class Stopped(Exception):
    """The run was asked to stop."""


class Stopping:
    """Decides when a run of `steps` steps ends. `ending`: why it ends before its last step; None if it does not."""

    def __init__(self, steps: int) -> None:
        self.last_step = steps
        self.ending: Ending | None = None
        self.training: int | None = None
        """The step that has been selected and is not yet recorded, which a stop waits for."""
        self._requested = asyncio.Event()

    def ask(self, ending: Ending) -> None:
        """Asks the loop to end after the step in training. The first of several reasons is kept."""
        self.ending = self.ending or ending
        self._requested.set()

    def end_with(self, step: int, ending: Ending) -> None:
        """Makes the current step the last."""
        self.last_step = step
        self.ask(ending)

    @property
    def requested(self) -> bool:
        """Whether the run ends with the step in training."""
        return self._requested.is_set()

    @property
    def is_from_outside(self) -> bool:
        """Whether a signal or the store ends the run, so that it should end soon; not one of the run's own rules."""
        return self.ending is not None and self.ending.cause in (EndCause.SIGNAL, EndCause.STORE)

    async def until(self, work: Awaitable[T]) -> T:
        """The result of `work`; raises Stopped, and cancels it, if the run is asked to stop first."""
        task, stop = asyncio.ensure_future(work), asyncio.ensure_future(self._requested.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise Stopped
        finally:
            stop.cancel()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def interruptible(work: Awaitable[T], signals: Signals, say: Callable[[str], None]) -> T:
    """The result of `work`. A signal meanwhile cancels it, and is raised as `Interrupted` once it has ended."""
    task, loop = asyncio.ensure_future(work), asyncio.get_running_loop()

    def cancel(_: int) -> None:
        loop.call_soon_threadsafe(task.cancel)
        say("stopping; again to stop now")

    with signals.answering(cancel):
        try:
            return await task
        except asyncio.CancelledError:
            if not signals.arrived:
                raise
            raise Interrupted(signals.arrived[0]) from None
