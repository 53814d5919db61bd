"""Merges the parts of finished blocks of steps into one file each (`kit.archive.parts` says why no row is lost).

The writer of the archive calls `Merging.advance` after each part that it has written. A call appends the rows of
`PARTS_AT_ONCE` steps to a hidden partial file, which gets its name once the block's last step is in it. So a call costs
what writing so many parts costs, and a block is merged within 25 more steps. A process that ends before starts the
block's file anew.

A merge is a convenience: one that fails (a damaged part, a full disk) is logged, its block stays as it is until the
next process, and the run goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from squelch.kit.archive.parts import Part, block_of, by_step, merged_key, parts_in
from squelch.kit.archive.store import ArchiveError, Store, writing

log = logging.getLogger(__name__)
PARTS_AT_ONCE = 4

Rows = Callable[[Store, Sequence[int]], Iterator[pa.Table]]
"""The rows of steps, ascending, as they stand in a merged file: tables with rows of one step each."""


@dataclass
class _Begun:
    """A merge in progress: its open partial file, the files that it replaces, and the steps that it still lacks."""

    key: str
    block: int
    replaced: list[Part]
    left: list[int]
    file: ExitStack
    writer: pq.ParquetWriter


class Merging:
    """Merges the parts in one folder of a run. Calls come one at a time, from the one writer of the folder.

    `schema`, `dictionary`: of merged files, and the columns whose values repeat; `rows`: reads the parts.
    """

    def __init__(self, store: Store, folder: str, schema: pa.Schema, dictionary: Sequence[str], rows: Rows) -> None:
        self.store, self.folder, self.schema, self.rows = store, folder, schema, rows
        self._dictionary = list(dictionary)
        self._begun: _Begun | None = None
        self._tried = set[int]()
        """Blocks whose merge this process has begun."""

    def advance(self) -> None:
        """Merges a few parts of the oldest block before the newest step's that has more than one file."""
        try:
            begun = self._begun = self._begun or self._begin()
            if begun is not None:
                self._append(begun)
        except ArchiveError as error:
            log.warning("the files of a finished block of steps stay unmerged: %s", error)
            self.drop()

    def written_again(self, step: int) -> None:
        """To be called before a part is written: a merge that may hold former rows of the step begins anew."""
        self._tried.discard(block_of(step))
        if self._begun is not None and self._begun.block == block_of(step):
            self.drop()

    def drop(self) -> None:
        """Gives up the merge in progress, if there is one, and its partial file."""
        begun, self._begun = self._begun, None
        if begun is not None:
            with suppress(_Dropped), begun.file:
                raise _Dropped

    def truncate_after(self, step: int) -> None:
        """Deletes the rows of all steps after `step`."""
        self.drop()
        with writing(self.store.where(self.folder)):
            parts = parts_in(self.store, self.folder)
            for part in parts:
                if part.steps[0] > step:
                    self.store.delete(part.key)
            for part in parts:
                if part.steps[0] <= step < part.steps[-1]:
                    self._cut(part, [one for one in part.steps if one <= step])

    def _cut(self, part: Part, steps: list[int]) -> None:
        with ExitStack() as file:
            self._write(writer := self._writer(file, merged_key(self.folder, steps)), steps)
            writer.close()
        self.store.delete(part.key)

    def _begin(self) -> _Begun | None:
        parts = parts_in(self.store, self.folder)
        newest = max((block_of(part.steps[-1]) for part in parts), default=0)
        for block in sorted({block_of(part.steps[0]) for part in parts} - self._tried - {newest}):
            found = [part for part in parts if block_of(part.steps[0]) == block]
            if len(found) > 1:
                self._tried.add(block)
                steps, file = list(by_step(found)), ExitStack()
                key = merged_key(self.folder, steps)
                with writing(self.store.where(key)):
                    return _Begun(key, block, found, steps, file, self._writer(file, key))
        return None

    def _append(self, begun: _Begun) -> None:
        steps, begun.left = begun.left[:PARTS_AT_ONCE], begun.left[PARTS_AT_ONCE:]
        with writing(self.store.where(begun.key)):
            self._write(begun.writer, steps)
            if begun.left:
                return
            begun.writer.close()
            begun.file.close()
            self._begun = None
            for part in begun.replaced:
                if part.key != begun.key:
                    self.store.delete(part.key)

    def _writer(self, file: ExitStack, key: str) -> pq.ParquetWriter:
        """A writer to the file at `key`, which appears there once `file` is closed after the writer."""
        sink = file.enter_context(self.store.put(key))
        return _Writer(
            sink, self.schema, compression="zstd", use_dictionary=self._dictionary, write_statistics=["step"]
        )

    def _write(self, writer: pq.ParquetWriter, steps: Sequence[int]) -> None:
        for table in self.rows(self.store, steps):
            if len(table):
                writer.write_table(table, row_group_size=len(table))


class _Writer(pq.ParquetWriter):
    """A file that is not closed is not wanted."""

    def __del__(self) -> None:
        """Does nothing, where the base class would complete the file."""


class _Dropped(Exception):
    """Ends the writing of a file that is not wanted."""
