"""The coordinator's side of the archive: a step's groups are written during the next step.

The next step's part, a checkpoint and a recovery of the learner wait until the previous part is on disk. The object
store has a minute to deliver the rows (`cluster.loop.playing.Play.rows`), or the run ends. Reading and writing the disk
has no time-out; an error of the disk ends the run and names the path (`actors.archive.store.ArchiveError`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from actors.filter.decisions import StepDecision
from cluster.control.parties import Archive, Payload
from cluster.loop.playing import Play, PlayedGroup


class Archiving:
    """Writes the parts of the archive, at most one at a time."""

    def __init__(self, archive: Archive, play: Play) -> None:
        self.archive, self.play = archive, play
        self._writing: asyncio.Task[None] | None = None

    async def begin(self, decision: StepDecision, groups: list[PlayedGroup]) -> None:
        """Starts to write the step's groups, in the order of their tickets, with the decision on each."""
        await self.finish()
        self._writing = asyncio.create_task(self._write(decision, groups))
        self._writing.add_done_callback(_noticed)

    async def finish(self) -> None:
        """Waits until the newest part is on disk."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            await writing

    async def stored(self, step: int, ids: Sequence[str]) -> list[Payload]:
        """References to the rows of these groups of an archived step, read from disk, in the order of `ids`."""
        await self.finish()
        tables = await asyncio.to_thread(self.archive.groups, step, ids)
        return [self.play.fleet.parties.payloads.put(table) for table in tables]

    async def _write(self, decision: StepDecision, groups: list[PlayedGroup]) -> None:
        started = time.time()
        tables = await self.play.rows(groups)
        decided = {d.group_id: d for d in decision.decisions}
        await asyncio.to_thread(self.archive.write_groups, decision.step, tables, decided, decision.filter)
        self.archive.event("archive", "write", started, time.time(), step=decision.step)


def _noticed(writing: asyncio.Task[None]) -> None:
    """Marks the error of a part as seen: a run that another error has ended does not wait for the part."""
    if not writing.cancelled():
        writing.exception()
