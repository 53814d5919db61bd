"""The coordinator's side of the archive: a step's groups are written during the next step.

The next step's part, a checkpoint and a recovery of the learner wait until the previous part is on disk. Reading and
writing the disk has no time-out; an error of the disk ends the run and names the path
(`actors.archive.store.ArchiveError`).

The rows are with the driver before the learner trains on the step (`Play.rows`), and `Archiving` holds them until it
writes them: a host that is lost later takes none of them with it, also if the step must be trained on again. Rows that
are lost before are those of a step that can be played again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from actors.filter.decisions import StepDecision
from cluster.control.parties import Archive, Payload, Payloads

if TYPE_CHECKING:
    import pyarrow as pa


class Archiving:
    """Writes the parts of the archive, at most one at a time."""

    def __init__(self, archive: Archive, payloads: Payloads) -> None:
        self.archive, self.payloads = archive, payloads
        self._writing: asyncio.Task[None] | None = None
        self._held: tuple[int, Mapping[str, pa.Table]] = (0, {})
        """The step in training and the rows of its groups, until they are written."""

    def hold(self, step: int, tables: Mapping[str, pa.Table]) -> None:
        """Holds the rows of the step that is about to be trained on, by ticket, until `begin`."""
        self._held = step, tables

    async def begin(self, decision: StepDecision, tables: Sequence[pa.Table]) -> None:
        """Starts to write the rows of the step's groups, in the order of their tickets, with the decision on each."""
        await self.finish()
        self._held = 0, {}
        self._writing = asyncio.create_task(self._write(decision, tables))
        self._writing.add_done_callback(_noticed)

    async def finish(self) -> None:
        """Waits until the newest part is on disk."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            await writing

    async def stored(self, step: int, ids: Sequence[str]) -> list[Payload]:
        """References to the rows of these groups of a step that was trained on, in the order of `ids`: the rows that
        are held for it, else those on disk. The driver owns them, so that no other host's loss takes them."""
        held_step, held = self._held
        if step == held_step:
            return [self.payloads.put(held[ticket_id]) for ticket_id in ids]
        await self.finish()
        tables = await asyncio.to_thread(self.archive.groups, step, ids)
        return [self.payloads.put(table) for table in tables]

    async def _write(self, decision: StepDecision, tables: Sequence[pa.Table]) -> None:
        started = time.time()
        decided = {d.group_id: d for d in decision.decisions}
        await asyncio.to_thread(self.archive.write_groups, decision.step, tables, decided, decision.filter)
        self.archive.event("archive", "write", started, time.time(), step=decision.step)


def _noticed(writing: asyncio.Task[None]) -> None:
    """Marks the error of a part as seen: a run that another error has ended does not wait for the part."""
    if not writing.cancelled():
        writing.exception()
