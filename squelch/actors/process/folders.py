"""Copies of folders between hosts: a folder's content, and the writing of a copy, whole or not at all. Pure.

    host that has the folder                        host that needs it
    listing: name, size, SHA-256 of each file       found: the same path with the same content is used as it is
    read_chunk: 32 MiB of one file at a time   -->  copied: into the node's cache, verified, renamed once complete

Invariants:

- A copy under its final name is complete, and each of its files has the digest of the listing, unless no more than its
  head was asked for (`copied`).
- A host makes a copy once: processes that need the same content wait for the first (at most `COPY_WAIT_S`).
- Names of files stay inside the copy, whatever a listing says.
- The reader's memory holds one chunk.

How a chunk crosses the network is the caller's business (`actors.process.shipping`, `learner.staging`).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from squelch.kit.base.disk import put_in_place
from squelch.kit.base.file_lock import held

CHUNK_BYTES = 32 << 20
COPY_WAIT_S = 1800.0
"""Seconds to wait for another process of the host that makes the same copy."""
FILES_AT_ONCE = 4
"""Files that are read at the same time: a checkpoint's shards one after another would leave the disk idle."""
STALE_S = 24 * 3600.0
"""Age in seconds after which an unfinished copy is assumed to belong to a dead process."""
EVERYTHING = ("**/*",)


@dataclass(frozen=True)
class Entry:
    """One file of a folder."""

    name: str
    """Path inside the folder, with `/` on every system."""
    size: int
    """Bytes."""
    digest: str
    """SHA-256 of the content, hexadecimal."""

    @property
    def num_chunks(self) -> int:
        """Number of chunks in which the file travels; 0 for an empty file."""
        return -(-self.size // CHUNK_BYTES)


Fetch = Callable[[int, int], bytes]
"""The chunk of a listing's file: (position of the file in the listing, number of the chunk) to its bytes."""
Heads = Mapping[str, bytes]
"""The first bytes of files, by name."""
NO_HEADS: Heads = MappingProxyType({})
Whole = Callable[[Path], Path]
"""Takes the path of a file, of which no more than the head needs to be there, to that of the whole file."""


def listing(folder: Path, patterns: Iterable[str] = EVERYTHING) -> tuple[Entry, ...]:
    """The files of a folder that match a pattern (as `Path.glob` reads it), by name. Reads every byte of them."""
    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        return tuple(pool.map(lambda file: _entry(folder, file), sorted(_matching(folder, patterns))))


def _entry(folder: Path, file: Path) -> Entry:
    return Entry(file.relative_to(folder).as_posix(), file.stat().st_size, file_digest(file))


def _matching(folder: Path, patterns: Iterable[str]) -> set[Path]:
    return {file for pattern in patterns for file in folder.glob(pattern) if file.is_file()}


def content_digest(entries: Sequence[Entry]) -> str:
    """A digest of names and contents, hexadecimal."""
    lines = "\n".join(f"{entry.digest} {entry.name}" for entry in entries)
    return hashlib.sha256(lines.encode()).hexdigest()


def read_chunk(file: Path, number: int) -> bytes:
    """The chunk of that number, counted from 0."""
    with file.open("rb") as opened:
        opened.seek(number * CHUNK_BYTES)
        return opened.read(CHUNK_BYTES)


def holds(folder: Path, entries: Sequence[Entry], patterns: Sequence[str] = (), besides: str = "") -> bool:
    """Whether the folder has these files with the same content and, with `patterns`, no other that matches one, but for
    the file `besides`: it may be a template or other stop ids. Sizes are compared before any byte is read."""
    found = {file.relative_to(folder).as_posix() for file in _matching(folder, patterns)}
    if patterns and found - {besides} != {one.name for one in entries}:
        return False
    files = [folder / entry.name for entry in entries]
    if not all(
        file.is_file() and file.stat().st_size == entry.size for file, entry in zip(files, entries, strict=True)
    ):
        return False
    return all(file_digest(file) == entry.digest for file, entry in zip(files, entries, strict=True))


def copied(target: Path, entries: Sequence[Entry], fetch: Fetch, heads: Heads = NO_HEADS) -> Path:
    """Makes the copy `target` unless it exists; returns `target`. Of the files in `heads` it has the first bytes, which
    are given there, and the size; nothing is fetched for them, and the rest of them is a hole.

    Raises:
        ValueError: the copy cannot be written, a file arrived damaged, or another process takes too long with it.
    """
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with held(target.with_name(f"{target.name}.lock"), "copying this folder", COPY_WAIT_S):
            if not target.is_dir():
                _copy(target, entries, fetch, heads)
    except OSError as error:
        raise ValueError(
            f"{target}: the copy cannot be written on this host ({error}); name another cache folder with the variable "
            "SQUELCH_CACHE where Ray starts"
        ) from error
    return target


def _copy(target: Path, entries: Sequence[Entry], fetch: Fetch, heads: Heads) -> None:
    _remove_stale(target)
    aside = Path(tempfile.mkdtemp(prefix=f"{target.name}.", suffix=".copying", dir=target.parent))
    try:
        write_files(aside, entries, fetch, heads)
        aside.chmod(0o755)
        put_in_place(aside, target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)  # does not exist if the copy succeeded


def _remove_stale(target: Path) -> None:
    for left in target.parent.glob(f"{target.name}.*.copying"):
        if left.stat().st_mtime < time.time() - STALE_S:
            shutil.rmtree(left, ignore_errors=True)


def write_files(folder: Path, entries: Sequence[Entry], fetch: Fetch, heads: Heads = NO_HEADS) -> None:
    """Writes the files of a listing below `folder`, as `copied` says. ValueError if a name leaves the folder or a file
    is damaged."""
    for index, entry in enumerate(entries):
        file = folder / _inside(entry.name)
        file.parent.mkdir(parents=True, exist_ok=True)
        if entry.name in heads:
            file.write_bytes(heads[entry.name])
            os.truncate(file, entry.size)
            continue
        found = hashlib.sha256()
        with file.open("wb") as opened:
            for number in range(entry.num_chunks):
                chunk = fetch(index, number)
                found.update(chunk)
                opened.write(chunk)
        if found.hexdigest() != entry.digest:
            raise ValueError(f"{file} arrived damaged: its SHA-256 is {found.hexdigest()} instead of {entry.digest}")


def _inside(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(f"the file name {name!r} leaves its folder")
    return path


def as_it_is(path: Path) -> Path:
    """The path of a file that is whole."""
    return path


def file_digest(file: Path) -> str:
    """SHA-256 of a file's content, hexadecimal."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
