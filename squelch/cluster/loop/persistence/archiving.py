"""The coordinator's client of the archive: a step's groups are written during the next step.

    waits for                         unblocked by   on time-out
    the previous part: the next       the disk       reported after `SLOW_S`; after `DISK_TIMEOUT_S` the run ends and
    part, a checkpoint, a recovery                   names the folder
    rows of a written part            the disk       the same

An error of the disk ends the run too and names the file (`kit.archive.store.ArchiveError`). A disk that hangs, as a
mounted one may, keeps the thread of its call and nothing else (`cluster.daemon_thread`).

The driver has the rows before the learner trains on the step (`Play.rows`), and `Archiving` holds them until they are
written. A host that is lost later therefore takes none of them with it, even if the step must be replayed. If rows are
lost earlier, their step is retried.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from squelch.cluster.control.calls import Payload
from squelch.cluster.control.protocols import Payloads
from squelch.cluster.daemon_thread import OwnThread
from squelch.kit.archive.store import ArchiveError
from squelch.kit.archive.writer import Archive
from squelch.kit.filter.decisions import StepDecision

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
SLOW_S, DISK_TIMEOUT_S = 60.0, 600.0
"""Seconds of one part's write or read after which it is reported, and after which the run ends."""


class Archiving:
    """Writes the parts of the archive, which is in `run_dir`, at most one at a time."""

    def __init__(self, archive: Archive, payloads: Payloads, run_dir: Path, say: Callable[[str], None]) -> None:
        self.archive, self.payloads, self.run_dir, self.say = archive, payloads, run_dir, say
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
        """Waits until the newest part is on disk. ArchiveError if the disk refuses, or hangs."""
        if (writing := self._writing) is not None:
            try:
                await asyncio.shield(writing)  # a checkpoint and a recovery may both wait for it
            finally:
                if writing.done() and self._writing is writing:
                    self._writing = None

    async def stored(self, step: int, ids: Sequence[str]) -> list[Payload]:
        """References to the rows of these groups of a step that was trained on, in the order of `ids`: the rows that
        are held for it, else those on disk. The driver owns them, so that no other host's loss takes them."""
        held_step, held = self._held
        if step == held_step:
            return [self.payloads.put(held[ticket_id]) for ticket_id in ids]
        await self.finish()
        tables = await self._by_disk(f"step {step} was not read", self.archive.groups, step, ids)
        return [self.payloads.put(table) for table in tables]

    async def _write(self, decision: StepDecision, tables: Sequence[pa.Table]) -> None:
        started = time.time()
        decided = {d.group_id: d for d in decision.decisions}
        write, step = self.archive.write_groups, decision.step
        await self._by_disk(f"step {step} was not written", write, step, tables, decided, decision.filter)
        self.archive.event("archive", "write", started, time.time(), step=step)

    async def _by_disk(self, late: str, call: Callable[..., T], *arguments: Any) -> T:
        """The result of a call that the disk answers. ArchiveError that says what is `late` after `DISK_TIMEOUT_S`."""
        answer = asyncio.get_running_loop().run_in_executor(OwnThread(), call, *arguments)
        await asyncio.wait({answer}, timeout=SLOW_S)
        if not answer.done():
            where = f"{self.run_dir}: the groups of {late} within"
            self.say(f"archive: {where} {SLOW_S:g} s; the run waits for its disk up to {DISK_TIMEOUT_S:g} s")
            await asyncio.wait({answer}, timeout=DISK_TIMEOUT_S - SLOW_S)
        if not answer.done():
            raise ArchiveError(
                f"{self.run_dir}: the groups of {late} within {DISK_TIMEOUT_S:g} s; is its disk still there?"
            )
        return await answer


def _noticed(writing: asyncio.Task[None]) -> None:
    """Marks the error of a part as seen: a run that another error has ended does not wait for the part."""
    if not writing.cancelled():
        writing.exception()
