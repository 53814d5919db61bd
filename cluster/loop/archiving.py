"""The coordinator's side of the archive: a step's groups are written while the next step goes on.

Who waits: the next step's part, and a checkpoint, for the part before to be on disk. Its rows have a minute to come
from the object store (`cluster.loop.playing.Play.rows`), or the run ends; the disk has no bound but its errors, which
end the run with the path named (`actors.archive.writer.ArchiveError`).
"""

from __future__ import annotations

import asyncio
import time

from actors.filter.decisions import StepDecision
from cluster.control.parties import Archive
from cluster.loop.playing import Play, PlayedGroup


class Archiving:
    """At most one part under way."""

    def __init__(self, archive: Archive, play: Play) -> None:
        self.archive, self.play = archive, play
        self._writing: asyncio.Task[None] | None = None

    async def begin(self, decision: StepDecision, groups: list[PlayedGroup]) -> None:
        """Starts writing the step's groups, in order of their tickets, with what was decided on each."""
        await self.finish()
        self._writing = asyncio.create_task(self._write(decision, groups))

    async def finish(self) -> None:
        """Waits until the part that was begun last is on disk."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            await writing

    async def _write(self, decision: StepDecision, groups: list[PlayedGroup]) -> None:
        started = time.time()
        tables = await self.play.rows(groups)
        decided = {d.group_id: d for d in decision.decisions}
        await asyncio.to_thread(self.archive.write_groups, decision.step, tables, decided, decision.filter)
        self.archive.event("archive", "write", started, time.time(), step=decision.step)
