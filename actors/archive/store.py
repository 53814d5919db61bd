"""Where a run's files lie: a small protocol, and its implementation on a local folder.

A key is a relative POSIX path such as `groups/step-000012.parquet`. Only whole files go through a store; the lines of
a live run (`metrics.jsonl`, `events.jsonl`) are appended on the disk of the process that runs it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol

from actors.process.disk import whole_file


class ArchiveError(ValueError):
    """The archive cannot be written or read; the message names the file and what would be right."""


@dataclass(frozen=True)
class Stat:
    """What changes when a file does."""

    size: int
    """Bytes."""
    modified_ns: int
    """Nanoseconds since 1970."""


class Store(Protocol):
    """Whole files by key. Every method but `where` raises OSError where the place refuses."""

    def put(self, key: str) -> AbstractContextManager[BinaryIO]:
        """A file to write to; it replaces what is at `key` when the block ends, and nothing when the block raises."""
        ...

    def get(self, key: str) -> BinaryIO:
        """The file's bytes, seekable; FileNotFoundError where there is none."""
        ...

    def list(self, prefix: str = "") -> list[str]:
        """The keys that begin with `prefix`, sorted; half-written files are not among them."""
        ...

    def delete(self, key: str) -> None:
        """Removes a file; a key without one is no error."""
        ...

    def stat(self, key: str) -> Stat | None:
        """None where there is no file."""
        ...

    def where(self, key: str = "") -> str:
        """The file's full name, for messages; the store's own without a key."""
        ...


@dataclass(frozen=True)
class LocalStore:
    """A store on a folder, which need not be there yet. Names that begin with a dot are not listed."""

    folder: Path

    def put(self, key: str) -> AbstractContextManager[BinaryIO]:
        return whole_file(self.path(key))

    def get(self, key: str) -> BinaryIO:
        return open(self.path(key), "rb")

    def list(self, prefix: str = "") -> list[str]:
        return sorted(self._keys("", prefix))

    def _keys(self, inside: str, prefix: str) -> Iterator[str]:
        """The keys under the folder `inside` (empty, or ending in /) that begin with `prefix`."""
        for entry in self._entries(inside):
            key = f"{inside}{entry.name}"
            if entry.is_dir():
                below = f"{key}/"
                if below.startswith(prefix) or prefix.startswith(below):
                    yield from self._keys(below, prefix)
            elif key.startswith(prefix):
                yield key

    def _entries(self, inside: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self.folder / inside) as entries:
                return [entry for entry in entries if not entry.name.startswith(".")]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def delete(self, key: str) -> None:
        self.path(key).unlink(missing_ok=True)

    def stat(self, key: str) -> Stat | None:
        try:
            found = self.path(key).stat()
        except FileNotFoundError:
            return None
        return Stat(found.st_size, found.st_mtime_ns)

    def where(self, key: str = "") -> str:
        return str(self.folder / key)

    def path(self, key: str) -> Path:
        """The file of a key. ValueError for a key that would lie outside the folder."""
        pure = PurePosixPath(key)
        if pure.is_absolute() or ".." in pure.parts or not pure.parts:
            raise ValueError(f"{key!r} is no key: a key is a relative path without `..`")
        return self.folder / pure


def as_store(place: Path | str | Store) -> Store:
    """The store at a place: a local folder's own where a path is given."""
    return LocalStore(Path(place)) if isinstance(place, (Path, str)) else place


@contextmanager
def writing(name: Path | str) -> Iterator[None]:
    """Turns an OSError into an ArchiveError that names the file and, for a full disk, what to do."""
    try:
        yield
    except OSError as error:
        raise ArchiveError(_explain(name, error)) from error


def _explain(name: Path | str, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return (
            f"cannot write {name}: no space is left there ({error.strerror or error}). Nothing half-written was kept. "
            "Free some space or point `runs_dir` at another disk, then resume the run."
        )
    return f"cannot write {name}: {error.strerror or error}. `runs_dir` must be a folder that this user may write to."
