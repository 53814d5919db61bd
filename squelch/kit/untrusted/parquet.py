"""Reads Parquet files that may be hostile: a row group at a time, with a bound on what is decoded.

A few hundred bytes of a Parquet file may stand for billions of values (run lengths, dictionaries). The footer states
the number of values, so most of such files are refused before anything is decoded. A text that a dictionary repeats is
not counted there; a column that may hold one is decoded in small batches, until the bound is reached.

Commands read tables apart (`table_rows`), and actors, which have no bound of memory, in their own process. pyarrow is
imported with the first file.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from squelch.kit.untrusted.decoder_process import apart
from squelch.kit.untrusted.files import MIB, Unreadable, decoding, open_file, shortened, size_text

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

MOST_BYTES = 1024 * MIB
"""Bytes of one row group's wanted columns, decoded."""
DAMAGED = "cannot be decoded as Parquet"
_REMEDY = "write it again, or fetch it again"
_BATCH, _SMALL_BATCH = 65_536, 256
_EXPANSION = 64
"""Times its size to which a streamed file may decode, where that is more than `MOST_BYTES`."""
_READ_BYTES, _BATCH_BYTES = MIB, 16 * MIB
"""Bytes of a streamed file that are read, and about as many as are decoded, at once."""
_WIDTHS = {"BOOLEAN": 1 / 8, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 4}
"""Bytes that a decoded value takes at least, by physical type."""


def table_names(path: Path, remedy: str = _REMEDY) -> tuple[str, ...]:
    """The columns of a file, which another interpreter reads. Raises Unreadable, with the remedy, if it is damaged."""
    [names] = apart(str(path), _names, str(path), remedy)
    return tuple(names)


def table_rows(
    path: Path, columns: Collection[str] | None, rows: int, remedy: str = _REMEDY
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number, row) of each row of a file, from 1, with those of its columns that are wanted, None for all, and without
    the nulls of objects. Another interpreter reads the file, at most `rows` rows at once. Raises Unreadable, with the
    remedy, if it is damaged."""
    wanted = None if columns is None else sorted(columns)
    found = chain.from_iterable(apart(str(path), _batches, str(path), wanted, rows, remedy))
    for number, row in enumerate(found, 1):
        yield number, {name: without_nulls(value) for name, value in row.items()}


def _names(path: str, remedy: str) -> Iterator[list[str]]:
    """Called apart."""
    with _opened(path, remedy) as (file, _):
        yield list(file.schema_arrow.names)


def _batches(path: str, columns: Sequence[str] | None, rows: int, remedy: str) -> Iterator[list[dict[str, Any]]]:
    """Called apart."""
    with _opened(path, remedy) as (file, size):
        wanted = [name for name in file.schema_arrow.names if columns is None or name in columns]
        first = 1
        for batch in streamed(file, path, wanted, rows, size):
            at_once = max(1, _BATCH_BYTES * len(batch) // max(1, batch.nbytes))  # a dictionary may repeat long texts
            for part in (batch.slice(start, at_once) for start in range(0, len(batch), at_once)):
                with decoding(f"{path}, rows {first} to {first + len(part) - 1}", DAMAGED):
                    found = part.to_pylist()
                yield found
                first += len(found)


@contextmanager
def _opened(path: str, remedy: str) -> Iterator[tuple[pq.ParquetFile, int]]:
    """The file, and its bytes."""
    with open_file(Path(path)) as raw:
        yield open_parquet(raw, path, remedy), os.fstat(raw.fileno()).st_size


def open_parquet(source: BinaryIO | Path, where: str, remedy: str = _REMEDY) -> pq.ParquetFile:
    """The file, of which only the footer is read. Raises Unreadable if that is damaged, with the remedy, or if two
    columns have one name. `source`: an open file, or the path of a regular file, which is memory-mapped."""
    import pyarrow.parquet as pq

    with decoding(where, DAMAGED, remedy):
        mapped = isinstance(source, Path)
        file = pq.ParquetFile(
            source,
            memory_map=mapped,
            pre_buffer=False,
            buffer_size=0 if mapped else _READ_BYTES,
            arrow_extensions_enabled=False,
        )
        names = list(file.schema_arrow.names)
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise Unreadable(f"{where} has more than one column {shortened(repr(twice[0]), 80)}; rename or remove one")
    return file


def row_groups(
    file: pq.ParquetFile, where: str, columns: Sequence[str], only: Sequence[int] | None = None
) -> Iterator[pa.Table]:
    """The wanted columns of each row group in order, or of the row groups with the numbers `only`; a file without row
    groups yields one empty table."""
    if file.num_row_groups == 0:
        with decoding(where, DAMAGED, _REMEDY):
            empty = _empty(file, columns)
        yield empty
    for group in range(file.num_row_groups) if only is None else only:
        yield read_row_group(file, where, group, columns)


def streamed(
    file: pq.ParquetFile, where: str, columns: Sequence[str], rows: int, file_bytes: int
) -> Iterator[pa.RecordBatch]:
    """The wanted columns in batches of at most `rows` rows: a row group takes the memory of one batch, however large it
    is. Raises Unreadable if a batch is damaged or takes more than `MOST_BYTES`, or if the file, of `file_bytes`,
    decodes to more than `_EXPANSION` times its size."""
    most: float = max(MOST_BYTES, _EXPANSION * file_bytes)
    for group in range(file.num_row_groups):
        with decoding(where, DAMAGED, _REMEDY):
            first = next(file.iter_batches(1, row_groups=[group], columns=list(columns), use_threads=False), None)
        if first is None:
            continue
        least, repeats = _least_bytes(file, group, set(columns))
        most -= least
        _bound(MOST_BYTES + 1 if most < 0 else 0, where)
        facts = file.metadata.row_group(group)
        each = max(1, facts.total_byte_size // max(1, facts.num_rows))
        size = max(1, min(_SMALL_BATCH if repeats > MOST_BYTES else rows, _BATCH_BYTES // each))
        batches = file.iter_batches(size, row_groups=[group], columns=list(columns), use_threads=False)
        while True:
            with decoding(where, DAMAGED, _REMEDY):
                batch = next(batches, None)
                if batch is None:
                    break
                batch.validate(full=True)
            _bound(batch.nbytes, where)
            yield batch


def without_nulls(value: Any) -> Any:
    """A value of an Arrow table without the null fields of its objects, which say that another row has the field."""
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


def in_one(tables: Iterable[pa.Table], where: str, most_bytes: int, most_rows: int) -> pa.Table:
    """The tables, of one schema and at least one, in one. Raises Unreadable once they have more bytes or rows: row
    groups are bounded one by one, and a small file may hold many."""
    import pyarrow as pa

    found, num_bytes, num_rows = list[pa.Table](), 0, 0
    for table in tables:
        num_bytes, num_rows = num_bytes + table.nbytes, num_rows + len(table)
        if num_bytes > most_bytes or num_rows > most_rows:
            raise Unreadable(f"{where} has more than {most_rows:,} rows or {size_text(most_bytes)}, decoded")
        found.append(table)
    return pa.concat_tables(found)


def read_row_group(file: pq.ParquetFile, where: str, group: int, columns: Sequence[str]) -> pa.Table:
    """The wanted columns of one row group. Raises Unreadable if they are damaged or take more than `MOST_BYTES`."""
    import pyarrow as pa

    batches, size = list[pa.RecordBatch](), 0
    with decoding(where, DAMAGED, _REMEDY):
        if next(file.iter_batches(1, row_groups=[group], columns=list(columns), use_threads=False), None) is None:
            return _empty(file, columns)
        # Only now: facts of a chunk that contradict one another end the process, unless a read has refused them before.
        least, repeats = _least_bytes(file, group, set(columns))
        _bound(least, where)
        rows = _SMALL_BATCH if repeats > MOST_BYTES else _BATCH
        for batch in file.iter_batches(rows, row_groups=[group], columns=list(columns), use_threads=False):
            size += batch.nbytes
            _bound(size, where)
            batches.append(batch)
        table = pa.Table.from_batches(batches)
        table.validate(full=True)  # text that is no UTF-8, and offsets outside their buffer
    return table


def _empty(file: pq.ParquetFile, columns: Sequence[str]) -> pa.Table:
    return file.schema_arrow.empty_table().select(list(columns))


def _least_bytes(file: pq.ParquetFile, group: int, columns: set[str]) -> tuple[float, int]:
    """(bytes that the decoded columns take at least, bytes that they may take if a dictionary repeats its texts)."""
    facts, least, repeats = file.metadata.row_group(group), 0.0, 0
    for index in range(facts.num_columns):
        if file.schema.column(index).path.partition(".")[0] in columns:
            chunk = facts.column(index)
            least += chunk.num_values * _WIDTHS.get(chunk.physical_type, 1)
            if chunk.physical_type not in _WIDTHS or chunk.physical_type == "BYTE_ARRAY":
                repeats += chunk.num_values * chunk.total_uncompressed_size * chunk.has_dictionary_page
    return least, repeats


def _bound(num_bytes: float, where: str) -> None:
    if num_bytes > MOST_BYTES:
        raise Unreadable(
            f"{where}: a row group decodes to more than {size_text(MOST_BYTES)}; write it with smaller row groups"
        )
