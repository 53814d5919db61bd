"""The records of a trainer's file, one after another: a record is one JSON object or one row of a table.

| suffix, in either case | content |
|---|---|
| `.jsonl`, `.jsonl.gz`, `.jsonl.zst` | JSON Lines |
| `.json` | JSON Lines, or one array of objects |
| `.parquet` | a table |

Invariants:

- A file of any size takes the memory of a few records: lines are read one by one, tables a batch at a time.
- This process does not import Arrow: what Arrow decodes is decoded apart (`squelch/kit/untrusted/decoder_process.py`).
- A last line that ends within a record is left out with a note, because its trainer may be writing it. Any other damage
  is refused; the error names the file and the record's number, from 1.
- Files may be hostile (`squelch/kit/untrusted`).
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from squelch.kit.base.errors import UserError
from squelch.kit.untrusted.decoder_process import apart
from squelch.kit.untrusted.files import MIB, Unreadable, decoding, is_file, open_file
from squelch.kit.untrusted.parquet import table_names, table_rows
from squelch.kit.untrusted.text import lines_of, parse_object

Record = dict[str, Any]
SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".json", ".parquet")
ROWS_AT_ONCE = 1024
"""Rows of a Parquet file that are converted to Python objects at once."""
CHUNK_BYTES = MIB
"""Bytes of a compressed file that are decompressed at once."""
_REMEDY = f"give one of {', '.join(SUFFIXES)}"
BEING_WRITTEN = "if it is still being written, read it once its trainer has closed it; otherwise write it again"

_CUT_OFF = f"Parquet ends with its footer: {BEING_WRITTEN}"


def suffix_of(path: Path, read: Sequence[str], remedy: str) -> str:
    """Which of the suffixes `read` the path has, in lower case; empty for a folder or a name without one. UserError
    with the remedy, which names them, for a file of another."""
    name = path.name.lower()
    found = next((suffix for suffix in read if name.endswith(suffix)), None)
    if found is None and path.suffix and is_file(path):
        raise UserError(f"{path}: `{path.suffix.lower()}` files are not read here; {remedy}")
    return found or ""


def columns_of(path: Path) -> tuple[str, ...]:
    """The columns of a table, or the keys of the first record; none for a file without records."""
    if suffix_of(path, SUFFIXES, _REMEDY) == ".parquet":
        return table_names(path, _CUT_OFF)
    return next((tuple(record) for _, record in records(path, None, [])), ())


def records(path: Path, columns: Collection[str] | None, notes: list[str]) -> Iterator[tuple[int, Record]]:
    """(number, record) of each record, from 1. `columns`: those that are needed of a table, None for all; JSON is read
    whole. `notes`: takes what a reader should know.

    Raises Unreadable for a damaged file.
    """
    suffix = suffix_of(path, SUFFIXES, _REMEDY)
    if suffix == ".parquet":
        yield from table_rows(path, columns, ROWS_AT_ONCE, _CUT_OFF)
    elif suffix == ".json" and _is_array(path):
        yield from _array(path)
    else:
        yield from _lines(path, suffix, notes)


def _is_array(path: Path) -> bool:
    with open_file(path) as file:
        return file.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"["


def _array(path: Path) -> Iterator[tuple[int, Record]]:
    from squelch.kit.untrusted.json_rows import JsonShard

    shard = JsonShard(path, None)
    yield from ((index + 1, shard.row(index)) for index in range(len(shard)))


def _lines(path: Path, suffix: str, notes: list[str]) -> Iterator[tuple[int, Record]]:
    with open_file(path) as raw:
        for number, line in lines_of(_plain(raw, path, suffix), str(path)):
            if not line.strip():
                continue
            try:
                record = parse_object(line, f"{path}, row {number}")
            except Unreadable:
                if number == 1 or line.endswith(b"\n"):
                    raise
                notes.append(f"{path}: its last line, {number}, is not complete and is left out; {BEING_WRITTEN}")
                return
            yield number, record


def _plain(raw: BinaryIO, path: Path, suffix: str) -> Any:
    """What reads the uncompressed lines of an open file."""
    if suffix == ".jsonl.gz":
        return _Decoded(gzip.GzipFile(fileobj=raw), path)
    if suffix == ".jsonl.zst":
        return _Decoded(io.BufferedReader(_Chunks(apart(str(path), _decompressed, str(path)))), path)
    return raw


class _Chunks(io.RawIOBase):
    """Chunks of bytes as a file."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._left = chunks, b""

    def readable(self) -> bool:
        """As of files."""
        return True

    def readinto(self, buffer: Any) -> int:
        """As of files."""
        self._left = self._left or next(self._chunks, b"")
        size = min(len(buffer), len(self._left))
        buffer[:size], self._left = self._left[:size], self._left[size:]
        return size


class _Decoded:
    """A compressed file whose damage is reported as Unreadable."""

    def __init__(self, file: Any, path: Path) -> None:
        self._file, self._path = file, path

    def readline(self, most_bytes: int) -> bytes:
        """As of files."""
        with decoding(str(self._path), "cannot be decompressed", BEING_WRITTEN):
            return self._file.readline(most_bytes)


def _decompressed(path: str) -> Iterator[bytes]:
    """Called apart."""
    import pyarrow as pa

    with open_file(Path(path)) as raw, decoding(path, "cannot be decompressed", BEING_WRITTEN):
        stream: Any = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")
        while chunk := stream.read(CHUNK_BYTES):
            yield chunk
