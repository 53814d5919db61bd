"""Keeps a run's copy in a store: sends what is closed, then the manifest; makes a folder from the newest manifest.

    upload      scan the folder -> send the files that changed -> check the scan -> commit -> delete what is obsolete
    restore     read the newest manifest -> copy and verify every file -> rename the folder

What a scan finds is one state of the run: checkpoints are listed first, and a checkpoint follows the records and the
archived groups of its steps, so that these are on the disk by then. Later lines and parts do no harm, because a resumed
run cuts them off. A checkpoint's folder that was replaced or removed meanwhile makes the scan start again.

Files that are appended to (`*.jsonl`) are sent up to their last line break. Names that begin with a dot, `log/`, links
and whatever is no regular file are not sent.

A part of `upload` that fails raises OSError, and the folder and the newest manifest are as they were; the next call
goes on with what is left. Every request of a bucket is bounded (`actors.archive.bucket`); a mounted folder answers when
its file system does.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from actors.archive.reader import CONFIG, EVENTS
from actors.archive.store import LocalStore, Store
from actors.process.disk import partial_path, sync, whole_file, write_whole
from cluster.errors import UserError
from cluster.runs.folder import CHECKPOINTS
from cluster.runs.in_store.manifest import (
    CHUNK_BYTES,
    FILES,
    Manifest,
    Snapshot,
    StoredFile,
    Superseded,
    commit,
    generation_of,
    manifest_key,
    newest,
    numbers,
    object_name,
)
from envs.untrusted.files import read_bytes, reason
from envs.untrusted.text import parse_object

log = logging.getLogger(__name__)
MARK = ".store.json"
"""File of a run's folder with the id under which manifests know it. A copy of the folder elsewhere has another."""
NOT_SENT = ("log/",)
SCANS = 10
"""Number of scans of one upload; checkpoints change much less often."""
TAIL_BYTES = 32 << 20
"""Bytes, from the end, in which the last line break of a file of lines is looked for; a line has at most half as
many."""
BUFFERED = 8
"""Chunks that may be accepted before the first has arrived; a bucket has fewer under way."""
TAKE_OVERS = 20
"""Number of times that a new driver may find that the one before it has just written another manifest."""


class Stopped(Exception):
    """An upload was asked to stop."""


class Unsettled(OSError):
    """The folder changed during every scan."""


@dataclass
class Mirror:
    """A run's folder and its place in a store, for the driver that holds the lease of this generation."""

    run_dir: Path
    store: Store
    generation: int
    owner: str
    guard: Callable[[], None] = lambda: None
    """Called before an upload; raises OSError or Superseded if this driver may not, or cannot, write there."""
    stop: Callable[[], bool] = lambda: False
    """Asked between chunks whether to stop."""
    moved: Callable[[], None] = lambda: None
    """Told when the store has taken a part of a file, or need not."""
    kept: Callable[[], None] = lambda: None
    """Told when the store has taken a whole file."""
    manifest: Manifest = field(default_factory=Manifest)
    """The newest manifest, of this driver or the one before it."""
    _sequence: int = 0
    _sent: dict[str, tuple[tuple[int, ...], StoredFile]] = field(default_factory=dict)
    """By key, the state of the local file when it was sent, and what was sent."""
    _before: set[str] = field(default_factory=set)
    """Names of the files of the manifest before the newest."""
    _stored: set[str] | None = None
    """Names of files that the store may have; None before the first listing."""

    # -- the folder and the store --------------------------------------------------------------------------------

    def take_over(self, resume: bool) -> Path | None:
        """Makes this driver the only one that can write manifests. Returns the folder of a copy of the run if the store
        has a run and this host has not; `adopt` gives it its name.

        Raises:
            UserError: a new run's name is taken in the store, or folder and store have gone different ways.
            OSError: the store cannot be read or written.
        """
        there = (self.run_dir / CONFIG).is_file()
        folder = (read_mark(self.run_dir) if there else "") or uuid.uuid4().hex
        for _ in range(TAKE_OVERS):
            self.manifest = newest(self.store)
            self._check(self.manifest, resume)
            try:
                self._commit({"folder": folder})
            except Superseded:
                if newest(self.store).generation > self.generation:
                    raise
                continue  # the driver before this one has written once more
            return self._restored() if self.manifest.files and not there else None
        raise OSError(f"{self.store.where()}: its manifests change faster than a driver can take over")

    def _check(self, found: Manifest, resume: bool) -> None:
        if found.files and not resume:
            raise UserError(
                f"{self.store.where()} already holds a run. Continue it with --resume, or choose another name with "
                "name=NAME"
            )
        there = (self.run_dir / CONFIG).is_file()
        if there and found.files and read_mark(self.run_dir) != found.folder:
            raise UserError(
                f"{self.run_dir} is not the folder from which {self.store.where()} was written last "
                f"({found.owner or 'another driver'} has gone on with the run elsewhere). Move {self.run_dir} away to "
                "resume from the store, or choose another name with name=NAME"
            )

    def mark(self) -> None:
        """Writes the folder's id beside the run, so that a later driver on this host knows the folder for its own."""
        if read_mark(self.run_dir) != self.manifest.folder:
            write_whole(self.run_dir / MARK, json.dumps({"folder": self.manifest.folder}))

    def _restored(self) -> Path:
        """Copies the newest manifest's files into a folder beside the run's; returns it once it is complete."""
        partial = partial_path(self.run_dir)
        shutil.rmtree(partial, ignore_errors=True)
        local, snapshot = LocalStore(partial), Snapshot(self.store, self.manifest)
        for key, wanted in self.manifest.files.items():
            with whole_file(local.path(key)) as file:
                for chunk in snapshot.chunks(key):
                    self._go_on()
                    file.write(chunk)
            os.utime(local.path(key), ns=(wanted.modified_ns, wanted.modified_ns))
            self._sent[key] = _state(local.path(key)), wanted
        write_whole(partial / MARK, json.dumps({"folder": self.manifest.folder}))
        return partial

    def adopt(self, partial: Path) -> None:
        """Gives a complete copy the run's name. UserError if something that is no run has that name."""
        try:
            partial.rename(self.run_dir)
        except OSError as error:
            raise UserError(
                f"{self.run_dir} is in the way of the run from the store ({reason(error)}); remove it"
            ) from error
        sync(self.run_dir.parent)

    # -- the upload ----------------------------------------------------------------------------------------------

    def upload(self) -> tuple[int, int]:
        """Sends what has changed since the newest manifest and commits the next one; returns the number of files and
        bytes sent. `events.jsonl` is not counted, because every upload that is counted adds an event to it.

        Raises:
            OSError: the store or the disk failed; the newest manifest is as it was.
            Superseded: another driver has taken the run over.
            Stopped: `stop` says so.
        """
        self.guard()
        files, count, num_bytes = self._scanned()
        if files != self.manifest.files:
            self._commit({"files": files})
            self._sent = {key: sent for key, sent in self._sent.items() if files.get(key) == sent[1]}
            self._clear()
        return count, num_bytes

    def _scanned(self) -> tuple[dict[str, StoredFile], int, int]:
        """One state of the folder, all sent; number of files and bytes that were sent for it."""
        count = num_bytes = 0
        for _ in range(SCANS):
            before = self._checkpoints()
            files, key = dict[str, StoredFile](), ""
            try:
                for key in self._keys():
                    files[key], fresh = self._send(key)
                    counted = fresh and key != EVENTS
                    count += counted
                    num_bytes += files[key].size * counted
            except FileNotFoundError:  # removed between the listing and the reading, or gone with the store
                if not self.run_dir.is_dir() or (self.run_dir / key).is_file():
                    raise
                continue
            if self._checkpoints() == before:
                return files, count, num_bytes
        raise Unsettled(f"{self.run_dir} changed during each of {SCANS} scans")

    def _keys(self) -> Iterator[str]:
        """The keys to send, those of checkpoints first."""
        local = LocalStore(self.run_dir)
        yield from local.list(f"{CHECKPOINTS}/")
        whole = self.run_dir.resolve()
        for key in local.list():
            if key.startswith((f"{CHECKPOINTS}/", *NOT_SENT)):
                continue
            path = local.path(key)
            if key in self._sent or (path.is_file() and path.resolve() == whole / key):
                yield key

    def _checkpoints(self) -> dict[str, tuple[int, ...]]:
        """What changes when a checkpoint appears, is replaced, amended or removed."""
        folder = self.run_dir / CHECKPOINTS
        found = [path for path in folder.glob("step-*")] if folder.is_dir() else []
        return {path.name: _state(path) for path in found}

    def _send(self, key: str) -> tuple[StoredFile, bool]:
        """The file in the store, and whether it was sent just now."""
        path = self.run_dir / key
        state = _state(path)
        if key in self._sent and self._sent[key][0] == state:
            return self._sent[key][1], False
        stored = self._same(key, path) or self._put(key, path, state)
        self._sent[key] = state, stored
        return stored, stored != self.manifest.files.get(key)

    def _same(self, key: str, path: Path) -> StoredFile | None:
        """The newest manifest's file if it has the content of the local one: after a resume nothing is sent again."""
        known = self.manifest.files.get(key)
        with path.open("rb") as file:
            if known is None or _length(key, file) != known.size:
                return None
            digest = hashlib.sha256()
            for chunk in self._pieces(file, known.size):
                digest.update(chunk)
                self.moved()
        return known if digest.hexdigest() == known.sha256 else None

    def _put(self, key: str, path: Path, state: tuple[int, ...]) -> StoredFile:
        self._sequence += 1
        name, digest = object_name(key, self.generation, self._sequence), hashlib.sha256()
        if self._stored is not None:
            self._stored.add(name)
        with path.open("rb") as file, self.store.put(name) as out:
            size = _length(key, file)
            for sent, chunk in enumerate(self._pieces(file, size)):
                digest.update(chunk)
                out.write(chunk)
                if sent > BUFFERED:
                    self.moved()
        self.kept()
        return StoredFile(name=name, size=size, sha256=digest.hexdigest(), modified_ns=state[-1])

    def _pieces(self, file: BinaryIO, size: int) -> Iterator[bytes]:
        """The first `size` bytes of a file."""
        file.seek(0)
        while size > 0:
            self._go_on()
            chunk = file.read(min(size, CHUNK_BYTES))
            if not chunk:
                raise OSError(f"{file.name} became shorter while it was read")
            size -= len(chunk)
            yield chunk

    def _go_on(self) -> None:
        if self.stop():
            raise Stopped

    def _commit(self, changes: dict[str, Any]) -> None:
        wanted = {**changes, "generation": self.generation, "owner": self.owner}
        while True:
            made = self.manifest.model_copy(update={**wanted, "number": self.manifest.number + 1})
            there = commit(self.store, made)
            self._before, self.manifest = self.manifest.names(), there
            if there == made:
                return

    # -- what is obsolete ----------------------------------------------------------------------------------------

    def _clear(self) -> None:
        """Deletes manifests before the last two, and files that neither of these names. What cannot be deleted now is
        left to the next call, or to the next driver."""
        needed = self.manifest.names() | self._before
        try:
            for number in numbers(self.store):
                if number < self.manifest.number - 1:
                    self.store.delete(manifest_key(number))
            if self._stored is None:
                self._stored = self._earlier()
            for name in self._stored - needed:
                self.store.delete(name)
                self._stored.discard(name)
        except OSError as error:
            log.warning("obsolete files stay in %s for now: %s", self.store.where(), reason(error))

    def _earlier(self) -> set[str]:
        """Files of the store that this driver or one before it has sent; those of a later one are not its to delete."""
        return {name for name in self.store.list(f"{FILES}/") if generation_of(name) <= self.generation}


def _state(path: Path) -> tuple[int, ...]:
    """What changes when a file is replaced or appended to, or an entry of a folder is; the last is the time of
    modification in nanoseconds."""
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _length(key: str, file: BinaryIO) -> int:
    """Bytes of a file that are sent: all, or up to the last line break."""
    size = file.seek(0, os.SEEK_END)
    if not key.endswith(".jsonl"):
        return size
    start = max(0, size - TAIL_BYTES)
    file.seek(start)
    return start + file.read(size - start).rfind(b"\n") + 1


def read_mark(run_dir: Path) -> str:
    """The id of a run's folder; empty if it has none."""
    path = run_dir / MARK
    return str(parse_object(read_bytes(path, 1 << 16), str(path)).get("folder", "")) if path.is_file() else ""
