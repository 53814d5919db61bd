"""When and why a run ends: by one of its own rules with the step in training, or because it is asked to."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable
from typing import TypeVar

from squelch.cluster.runs.ending import EndCause, Ending

T = TypeVar("T")


def stop_signals() -> tuple[signal.Signals, ...]:
    """The signals that ask a run to end in good order. A closed terminal is one, unless it is ignored (`nohup`)."""
    hang_up = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGINT, signal.SIGTERM, *hang_up)


class Stopped(Exception):
    """The run was asked to stop."""


class Stopping:
    """Decides when a run of `steps` steps ends. `ending`: why it ends before its last step; None if it does not."""

    def __init__(self, steps: int) -> None:
        self.last_step = steps
        self.ending: Ending | None = None
        self.training: int | None = None
        """The step that has been selected and is not yet recorded, which a stop waits for."""
        self._asked = asyncio.Event()

    def ask(self, ending: Ending) -> None:
        """Asks the loop to end after the step in training. The first of several reasons is kept."""
        self.ending = self.ending or ending
        self._asked.set()

    def end_with(self, step: int, ending: Ending) -> None:
        """Makes the current step the last."""
        self.last_step = step
        self.ask(ending)

    @property
    def asked(self) -> bool:
        """Whether the run ends with the step in training."""
        return self._asked.is_set()

    @property
    def is_from_outside(self) -> bool:
        """Whether a signal or the store ends the run, so that it should end soon; not one of the run's own rules."""
        return self.ending is not None and self.ending.cause in (EndCause.SIGNAL, EndCause.STORE)

    async def until(self, work: Awaitable[T]) -> T:
        """The result of `work`; raises Stopped, and cancels it, if the run is asked to stop first."""
        task, stop = asyncio.ensure_future(work), asyncio.ensure_future(self._asked.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise Stopped
        finally:
            stop.cancel()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
