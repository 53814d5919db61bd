"""Reads zip archives that may be hostile, a member at a time; another interpreter decodes them.

| bound | why |
|---|---|
| `MAX_DIRECTORY` bytes of the directory | an entry of it takes twenty times its bytes in memory |
| `MAX_MEMBER` bytes of a member, decoded | it is held whole |
| `MOST_BYTES` in all, or `_EXPANSION` times the archive's size | members decode to a thousand times their size |

Where two members have one name, the last counts, as writers that append mean it. Arrow decodes Zstandard, which
Python's zipfile knows from 3.14 on.
"""

from __future__ import annotations

import copy
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from squelch.kit.untrusted.decoder_process import apart
from squelch.kit.untrusted.files import MIB, Unreadable, decoding, open_file, size_text

MAX_DIRECTORY = 16 * MIB
MAX_MEMBER = 64 * MIB
MOST_BYTES, _EXPANSION = 64 * MIB, 64
_ZSTANDARD = 93
_ENCRYPTED = 1
_CHUNK = MIB
_DAMAGED = "cannot be read as a zip archive"
_REMEDY = "if it is still being written, read it once that is done; otherwise write it again, or fetch it again"


def member_names(path: Path) -> list[str]:
    """The names of the archive's members, in order. Raises Unreadable if it is damaged or too large."""
    [names] = apart(str(path), _names, str(path))
    return names


def members(path: Path, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """(name, content) of the members with these names, in their order. Raises Unreadable as `member_names`."""
    name, chunks = None, list[bytes]()
    for found in apart(str(path), _contents, str(path), list(names)):
        if isinstance(found, bytes):
            chunks.append(found)
            continue
        if name is not None:
            yield name, b"".join(chunks)
        name, chunks = found, []
    if name is not None:
        yield name, b"".join(chunks)


class _Bounded:
    """An open file, of which no more is read at once than a directory may have."""

    def __init__(self, file: BinaryIO, where: str) -> None:
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable
        self._file, self._where = file, where

    def read(self, size: int = -1) -> bytes:
        """As of files; without a size, the rest."""
        if size > MAX_DIRECTORY:
            raise Unreadable(f"{self._where}: the archive's directory is larger than {size_text(MAX_DIRECTORY)}")
        return self._file.read(size if size >= 0 else MAX_DIRECTORY)


def _names(path: str) -> Iterator[list[str]]:
    """Called apart."""
    with open_file(Path(path)) as raw:
        yield list(_opened(raw, path).NameToInfo)


def _contents(path: str, names: list[str]) -> Iterator[str | bytes]:
    """The name of each member, then its content in pieces. Called apart."""
    with open_file(Path(path)) as raw:
        left = most = max(MOST_BYTES, _EXPANSION * os.fstat(raw.fileno()).st_size)
        archive = _opened(raw, path)
        for name in names:
            yield name
            for chunk in _content(archive, archive.NameToInfo[name], f"{path}, {name}"):
                left -= len(chunk)
                if left < 0:
                    raise Unreadable(f"{path} holds more than {size_text(most)}, decoded; give less data")
                yield chunk


def _opened(raw: BinaryIO, path: str) -> zipfile.ZipFile:
    with decoding(path, _DAMAGED, _REMEDY):
        file: Any = _Bounded(raw, path)
        return zipfile.ZipFile(file)


def _content(archive: zipfile.ZipFile, info: zipfile.ZipInfo, where: str) -> Iterator[bytes]:
    if info.flag_bits & _ENCRYPTED:
        raise Unreadable(f"{where}: is encrypted, which is not read here")
    sum_of_bytes, size = 0, 0
    with decoding(where, _DAMAGED, _REMEDY):
        read = _plain(archive, info)
    while True:
        with decoding(where, _DAMAGED, _REMEDY):
            chunk = read(_CHUNK)
        if not chunk:
            break
        size += len(chunk)
        if size > MAX_MEMBER:
            raise Unreadable(f"{where}: larger than {size_text(MAX_MEMBER)}, decoded")
        sum_of_bytes = zlib.crc32(chunk, sum_of_bytes)
        yield chunk
    if sum_of_bytes != info.CRC:
        raise Unreadable(f"{where} {_DAMAGED} (its checksum is wrong); {_REMEDY}")


def _plain(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Callable[[int], bytes]:
    """What reads a member's content, at most as many bytes as wanted."""
    if info.compress_type != _ZSTANDARD:
        return archive.open(info).read
    import pyarrow as pa

    packed: Any = copy.copy(info)
    packed.compress_type, packed.file_size, packed.CRC = zipfile.ZIP_STORED, info.compress_size, None
    stream: Any = pa.CompressedInputStream(pa.PythonFile(archive.open(packed), mode="r"), "zstd")
    return stream.read
