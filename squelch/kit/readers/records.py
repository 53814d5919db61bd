"""The records of a trainer's file, one after another: a record is one JSON object or one row of a table.

| suffix, in either case | content |
|---|---|
| `.jsonl`, `.json`, `.traj` | JSON Lines, one array of objects, or one object over several lines |
| `.jsonl.gz`, `.jsonl.zst` | JSON Lines |
| `.parquet` | a table |
| `.eval` | a log of inspect_ai's, an archive (`eval_archives.py`) |

A line may hold a batch, as ms-swift writes a step: each column a list with an entry for each completion.

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
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from squelch.kit.base.errors import UserError
from squelch.kit.readers.eval_archives import log_records
from squelch.kit.untrusted.decoder_process import apart
from squelch.kit.untrusted.files import MIB, Unreadable, decoding, is_file, open_file, read_bytes, size_text
from squelch.kit.untrusted.parquet import table_names, table_rows
from squelch.kit.untrusted.text import MAX_LINE, filled_lines, parse_object

Record = dict[str, Any]
SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".json", ".parquet", ".eval", ".traj")
ROWS_AT_ONCE = 1024
"""Rows of a Parquet file that are converted to Python objects at once."""
CHUNK_BYTES = MIB
"""Bytes of a compressed file that are decompressed at once."""
MAX_OBJECT, MOST_INDENTED = 4 * MAX_LINE, 8 * MAX_LINE
"""Bytes of a file that is one object over several lines, without and with its indentation."""
_PLAIN = (".jsonl", ".json", ".traj")
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
        return
    if suffix == ".eval":
        yield from log_records(path, notes)
        return
    found = _array(path) if suffix in _PLAIN and _is_array(path) else _lines(path, suffix, notes)
    yield from ((number, one) for number, record in found for one in _of_batch(record))


def _of_batch(record: Record) -> list[Record]:
    """The records of a batch; other columns than those of its length are of all of them."""
    prompts, said = record.get("prompt"), record.get("completion")
    if not isinstance(prompts, list) or not isinstance(said, list) or len(prompts) != len(said):
        return [record]
    if not all(isinstance(one, str | list) for one in (*prompts, *said)):  # messages are objects
        return [record]
    divided = {key for key, value in record.items() if isinstance(value, list) and len(value) == len(said)}
    return [
        {key: value[place] if key in divided else value for key, value in record.items()} for place in range(len(said))
    ]


def _is_array(path: Path) -> bool:
    with open_file(path) as file:
        return file.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"["


def _array(path: Path) -> Iterator[tuple[int, Record]]:
    from squelch.kit.untrusted.json_rows import JsonShard

    shard = JsonShard(path, None)
    yield from ((index + 1, shard.row(index)) for index in range(len(shard)))


def _lines(path: Path, suffix: str, notes: list[str]) -> Iterator[tuple[int, Record]]:
    with open_file(path) as raw:
        is_first = True
        for number, line in filled_lines(_plain(raw, path, suffix), str(path)):
            try:
                record = parse_object(line, f"{path}, row {number}")
            except Unreadable as error:
                if is_first and suffix in _PLAIN and (one := _one_object(path)) is not None:
                    yield number, one
                    return
                if is_first and line.endswith(b"\n") and line.rstrip().endswith((b"{", b"[", b",", b":")):
                    raise Unreadable(
                        f"{path}, row {number}: the object goes on in the next line; write each record in one line, or "
                        f"all of them in one array (an object alone may have {size_text(MAX_OBJECT)})"
                    ) from error
                if is_first or line.endswith(b"\n"):
                    raise
                notes.append(f"{path}: its last line, {number}, is not complete and is left out; {BEING_WRITTEN}")
                return
            is_first = False
            yield number, record


def object_in(path: Path) -> Record:
    """The object that a whole file is, of at most `MAX_OBJECT` bytes without its indentation: some programs write each
    token's id into a line of its own."""
    data = re.sub(rb"\n[ \t]+", b"\n", read_bytes(path, MOST_INDENTED))
    if len(data) > MAX_OBJECT:
        raise Unreadable(f"{path} is larger than {size_text(MAX_OBJECT)}, the most that one object may have")
    return parse_object(data, str(path))


def _one_object(path: Path) -> Record | None:
    """The object that the whole file is, if it is one."""
    try:
        return object_in(path)
    except Unreadable:
        return None


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

    def read(self, most_bytes: int) -> bytes:
        """As of files."""
        with decoding(str(self._path), "cannot be decompressed", BEING_WRITTEN):
            return self._file.read(most_bytes)


def _decompressed(path: str) -> Iterator[bytes]:
    """Called apart."""
    import pyarrow as pa

    with open_file(Path(path)) as raw, decoding(path, "cannot be decompressed", BEING_WRITTEN):
        stream: Any = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")
        while chunk := stream.read(CHUNK_BYTES):
            yield chunk
