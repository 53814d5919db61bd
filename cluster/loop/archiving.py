"""The coordinator's side of the archive: a step's groups are written during the next step.

The next step's part and a checkpoint wait until the previous part is on disk. The object store has a minute to deliver
the rows (`cluster.loop.playing.Play.rows`), or the run ends. Writing to disk has no time-out; an error of the disk ends
the run and names the path (`actors.archive.store.ArchiveError`).
"""

from __future__ import annotations

import asyncio
import time

from actors.filter.decisions import StepDecision
from cluster.control.parties import Archive
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

    async def finish(self) -> None:
        """Waits until the newest part is on disk."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            await writing

    async def _write(self, decision: StepDecision, groups: list[PlayedGroup]) -> None:
        started = time.time()
        tables = await self.play.rows(groups)
        decided = {d.group_id: d for d in decision.decisions}
        await asyncio.to_thread(self.archive.write_groups, decision.step, tables, decided, decision.filter)
        self.archive.event("archive", "write", started, time.time(), step=decision.step)
