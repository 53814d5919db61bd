"""The checkpoint that is written beside the loop, at most one at a time.

    begin              returns at once; the task writes, seals and prunes
    wait_for_files     every other call to the learner; so the weights are those of the checkpoint's step until its
                       files hold them
    wait               the next checkpoint, a recovery or a move of the ranks, the end of the run
    ended              `Learning.beside`: an error of the disk ends the run as soon as it is known, not after the play

The ranks' weights change in training alone. Until the next step's groups are played, nothing else wants the ranks, and
files are written from where the shards are. With `max_staleness` > 0 groups may be there already; then the next update
waits until the files are complete in the kernel's memory, which is the copy that the disk is given while the ranks
train. The kernel frees it for whoever needs memory, and lets writers wait for the disk if it has no room, so that no
copy of ours is to be counted or refused.

    the task ends with   the run
    nothing              goes on from this checkpoint after a loss, also one while the disk was waited for
    `RetrySteps`         the rebuilt weights are not those of the step's record: the checkpoint is dropped and the next
                         step writes one (`dropped`); a caller that needs this checkpoint retries the open steps first
    another error        ends with it

Whoever waits is bounded by the task: by `learner.checkpoint_timeout_s`, and by the bounds of a recovery.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from squelch.cluster.control.ledger import RetrySteps

log = logging.getLogger(__name__)


class Saving:
    """The checkpoint under way. `dropped`: whether the last one was, so that the next step writes one."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._files = asyncio.Event()
        self.dropped = False

    @property
    def under_way(self) -> set[asyncio.Task[None]]:
        """The task that writes, which a caller may wait for beside others; empty when there is none."""
        return {self._task} if self._task is not None else set()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Starts to write. RuntimeError if the checkpoint before is still being written."""
        if self._task is not None:
            work.close()
            raise RuntimeError("a checkpoint was begun while the one before it was being written")
        self._files = asyncio.Event()
        self._task = asyncio.create_task(work)

    def note_files(self) -> None:
        """The task's files hold the weights, which may change from here on; the task cannot be repeated."""
        self._files.set()

    async def wait_for_files(self) -> None:
        """Returns once no weights are being written; raises as `wait`."""
        if (task := self._task) is None:
            return
        files = asyncio.ensure_future(self._files.wait())
        try:
            await asyncio.wait({task, files}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            files.cancel()
        if task.done():
            await self.wait()

    async def wait_for_disk(self) -> None:
        """Returns once no complete files wait for the disk; errors are the next caller's of `wait`."""
        if self._task is not None and self._files.is_set():
            await asyncio.wait({self._task})

    async def wait(self, needed: bool = False) -> None:
        """Returns once no checkpoint is being written. Raises the error of its task; RetrySteps only if `needed`."""
        if (task := self._task) is None:
            return
        await asyncio.wait({task})  # the caller may be cancelled without cancelling the task
        if self._task is task:
            self._task = None
        try:
            task.result()
        except RetrySteps:
            self.dropped = True
            if needed:
                raise
        else:
            self.dropped = False

    async def close(self, is_lost: Callable[[], bool], until_lost: Callable[..., Awaitable[None]]) -> None:
        """Before the run fails: lets the checkpoint end if its ranks are well or its files need none, and cancels it if
        they are lost."""
        if (task := self._task) is None:
            return
        if not task.done() and not self._files.is_set() and not is_lost():
            await until_lost(task)
        await self.wait_for_disk()
        task.cancel()
        (found,) = await asyncio.gather(task, return_exceptions=True)
        if found is not None:
            log.warning("the checkpoint under way was not written: %r", found)
