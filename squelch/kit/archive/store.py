"""Storage of a run's files: a protocol, and its implementation on a folder, local or mounted.

A key is a relative POSIX path such as `groups/step-000012.parquet`. A store reads and writes whole files only; the
lines of a live run (`metrics.jsonl`, `events.jsonl`) are appended to files on the disk of the run's process. Buckets
of an object store: `kit.archive.bucket`, which also says which store a URL names.
"""

from __future__ import annotations

import errno
import io
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, Protocol

from squelch.kit.base.disk import sync, whole_file
from squelch.kit.untrusted.files import Unreadable, open_file, reason, state

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_DEPTH = 8
"""Folders below a store's own that are listed; a run has four."""
MAX_LISTED = 1_000_000
"""Files and folders that one listing passes over."""


class ArchiveError(Unreadable):
    """The archive cannot be written or read; the message names the file and says what would be right."""


class StoreUrlError(ValueError):
    """A URL names no store that can be used; the message says what would be right."""


@dataclass(frozen=True)
class Stat:
    """Size and time of a file; a change of the file changes them."""

    size: int
    """Bytes."""
    modified_ns: int
    """Nanoseconds since 1970."""


class Store(Protocol):
    """Whole files by key. Every method but `where` passes on the OSError of a failed access."""

    def put(self, key: str) -> AbstractContextManager[BinaryIO]:
        """A file to write to. It replaces the file at `key` when the `with` block ends, but not if the block raises."""

    def create(self, key: str, data: bytes) -> bool:
        """Writes a small file unless there is one at `key`; of several writers at once exactly one succeeds. Returns
        whether this call has written the file."""

    def get(self, key: str) -> BinaryIO:
        """The file's bytes, seekable. Raises FileNotFoundError if there is no file, and Unreadable for no regular
        file."""

    def list(self, prefix: str = "") -> list[str]:
        """The keys that begin with `prefix`, sorted, without partly written files."""

    def delete(self, key: str) -> None:
        """Removes a file; does nothing if there is none."""

    def stat(self, key: str) -> Stat | None:
        """The file's size and time; None if there is no file."""

    def where(self, key: str = "") -> str:
        """The file's full name, for messages; without a key, the store's name."""


@dataclass(frozen=True)
class LocalStore:
    """A store on a local folder, which need not exist yet. Names that begin with a dot are not listed."""

    folder: Path

    def put(self, key: str) -> AbstractContextManager[BinaryIO]:
        """As `Store.put`."""
        return whole_file(self.path(key))

    def create(self, key: str, data: bytes) -> bool:
        """As `Store.create`. A hard link gives the whole file its name, because on network file systems too a link is
        refused if the name exists."""
        path = self.path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(prefix=".create-", dir=path.parent) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            try:
                os.link(file.name, path)
            except FileExistsError:
                return False
        sync(path.parent)
        return True

    def get(self, key: str) -> BinaryIO:
        """As `Store.get`."""
        return open_file(self.path(key))

    def list(self, prefix: str = "") -> list[str]:
        """As `Store.list`, at most `MAX_DEPTH` folders deep. A link to a folder is followed only where the prefix names
        it: others may lead in circles. Raises Unreadable after `MAX_LISTED` entries."""
        found, folders, passed = list[str](), [""], 0
        while folders:
            inside = folders.pop()
            entries = self._entries(inside)
            passed += len(entries)
            if passed > MAX_LISTED:
                raise Unreadable(f"{self.folder} holds more than {MAX_LISTED:,} files; give the folder of one run")
            for entry in entries:
                key, below = f"{inside}{entry.name}", f"{inside}{entry.name}/"
                if not entry.is_dir():
                    found += [key] if key.startswith(prefix) else []
                elif prefix.startswith(below) or (below.startswith(prefix) and not entry.is_symlink()):
                    folders += [below] if inside.count("/") < MAX_DEPTH else []
        return sorted(found)

    def _entries(self, inside: str) -> Sequence[os.DirEntry[str]]:
        try:
            with os.scandir(self.folder / inside) as entries:
                return [entry for entry in entries if not entry.name.startswith(".")]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def delete(self, key: str) -> None:
        """As `Store.delete`."""
        self.path(key).unlink(missing_ok=True)

    def stat(self, key: str) -> Stat | None:
        """As `Store.stat`."""
        found = state(self.path(key))
        return None if found is None else Stat(found.st_size, found.st_mtime_ns)

    def where(self, key: str = "") -> str:
        """As `Store.where`."""
        return str(self.folder / key)

    def path(self, key: str) -> Path:
        """The path of a key's file. Raises ValueError for a key outside the folder."""
        pure = PurePosixPath(key)
        if pure.is_absolute() or ".." in pure.parts or not pure.parts:
            raise ValueError(f"{key!r} is no key: a key is a relative path without `..`")
        return self.folder / pure


BUCKETS = ("s3", "gs", "az")
"""Schemes of URLs of object stores."""
_FORMS = "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, or the absolute path of a mounted folder"


def check_store(url: str) -> str:
    """Returns the URL of a store, or an empty one: `s3://BUCKET/PREFIX`, `gs://...`, `az://...`, `file:///FOLDER` or an
    absolute path.

    Raises:
        StoreUrlError: the URL has another form, or holds more than a place, e.g. credentials. The message leaves out
            what may be one.
    """
    scheme, colon, rest = url.partition("://")
    if colon and scheme not in (*BUCKETS, "file"):
        raise StoreUrlError(f"{scheme}:// is no store; give {_FORMS}")
    if colon and (any(mark in rest for mark in "@?#") or not rest.strip("/")):
        raise StoreUrlError(
            f"a store is a bucket and a prefix and nothing else, e.g. {scheme}://bucket/prefix; credentials come from "
            "the environment, e.g. AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or from the role of the machine"
        )
    folder = PurePosixPath(rest if colon else url)
    if url and scheme not in BUCKETS and (not folder.is_absolute() or ".." in folder.parts):
        raise StoreUrlError(f"no other host would find the folder {url}; give {_FORMS}")
    return url


def as_store(place: Path | str | Store) -> Store:
    """The store at a place: a `LocalStore` for a path, else the given store."""
    return LocalStore(Path(place)) if isinstance(place, (Path, str)) else place


@contextmanager
def reading(name: Path | str) -> Iterator[None]:
    """Turns an OSError, or the error about a file that cannot be used, into an ArchiveError that names the file."""
    try:
        yield
    except Unreadable as error:
        raise ArchiveError(str(error)) from error
    except OSError as error:
        raise ArchiveError(f"{name} cannot be read: {reason(error)}") from error


@contextmanager
def writing(name: Path | str) -> Iterator[None]:
    """Turns an OSError into an ArchiveError that names the file and, for a full disk, what to do."""
    try:
        yield
    except Unreadable as error:
        raise ArchiveError(f"cannot write: {error}") from error
    except OSError as error:
        raise ArchiveError(_explain(name, error)) from error


def _explain(name: Path | str, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return (
            f"cannot write {name}: no space is left there ({error.strerror or error}). Nothing half-written was kept. "
            "Free some space or point `runs_dir` at another disk, then resume the run."
        )
    return f"cannot write {name}: {error.strerror or error}. `runs_dir` must be a folder that this user may write to."


class RangeReader(io.RawIOBase):
    """A file of `size` bytes that is read from any position, range by range (`_read_at`)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size, self._at = size, 0

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """As `io.RawIOBase.tell`."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """As `io.RawIOBase.seek`; a position before the file becomes its beginning."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: Buffer, /) -> int:
        """As `io.RawIOBase.readinto`."""
        length = min(memoryview(buffer).nbytes, self._size - self._at)
        if length <= 0:
            return 0
        data = memoryview(self._read_at(self._at, length))
        memoryview(buffer)[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _read_at(self, position: int, length: int) -> Buffer:
        """1 to `length` bytes from `position` on; `length` bytes are there. OSError if they cannot be read."""
        raise NotImplementedError
