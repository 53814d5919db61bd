"""Keeps a run's copy in a store: sends closed files, then the manifest; restores a folder from the newest manifest.

    upload      scan the folder -> send the files that changed -> check the scan -> commit -> delete what is obsolete
    restore     read the newest manifest -> copy and verify every file -> rename the folder

A scan finds one consistent state of the run: checkpoints are listed first, and a checkpoint is written after the
records and the archived groups of its steps, so these are on the disk by then. Later lines and parts do no harm,
because a resumed run cuts them off. A checkpoint's folder that was replaced or removed meanwhile makes the scan start
again. So does a merged file of parts that has appeared: the listing may lack it, and parts that were deleted for it.

Of files that are appended to (`grows`) a full span that was sent is not sent again; the last span is, once the file has
grown (`cluster.runs.in_store.manifest`). Files of lines are sent up to their last line break. The local file must begin
with the spans that stay: after it was replaced or cut, all of them are compared with it, else the last one. From the
first one that differs, the file is sent anew. Other files that changed are sent whole. Names that begin with a dot,
`log/`, links and whatever is no regular file are not sent; the folder `checkpoints` alone may be a link.

The folder records the number of its newest manifest (`Mark`) before it commits the manifest. If the store has a later
one, another folder has continued the run, perhaps a copy of this one, and this folder is refused.

A part of `upload` that fails raises OSError, and the folder and the newest manifest are as they were; the next call
continues with the rest. Every request of a bucket is bounded (`kit.archive.bucket`); a mounted folder answers when
its file system does.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from squelch.cluster.runs.folder import CHECKPOINTS, LOOP_FILE, RunFolder
from squelch.cluster.runs.in_store.manifest import (
    CHUNK_BYTES,
    FILES,
    SPAN_BYTES,
    Manifest,
    Snapshot,
    Span,
    StoredFile,
    Superseded,
    commit,
    generation_of,
    manifest_key,
    newest,
    numbers,
)
from squelch.kit.archive.parts import GROUPS, SCORES
from squelch.kit.archive.reader import CONFIG, EVENTS
from squelch.kit.archive.store import LocalStore, Store
from squelch.kit.base.disk import partial_path, sync, whole_file, write_whole
from squelch.kit.base.errors import UserError, bad_files_are_the_users
from squelch.kit.untrusted.files import Unreadable, read_bytes, reason
from squelch.kit.untrusted.text import parse_object

log = logging.getLogger(__name__)
MARK = ".store.json"
"""File of a run's folder with its `Mark`."""
NOT_SENT = ("log/",)
LINES = ".jsonl"
"""Suffix of files of lines, which are only appended to."""
TENSORBOARD, WANDB = ".tfevents.", ".wandb"
"""Part of the name of TensorBoard's files, and suffix of those of W&B, which are only appended to as well."""
SCANS = 10
"""Number of scans of one upload; checkpoints change much less often."""
TAIL_BYTES = (64 << 10, 32 << 20)
"""Bytes, from the end, in which the last line break of a file of lines is looked for, first in few; a line has at most
half as many as the last."""
BUFFERED = 8
"""Chunks that may be accepted before the first has arrived; a bucket has fewer under way."""
OWN_EVENTS_BYTES = 64 << 10
"""Bytes of events of uploads that may wait for something else to send."""
OWN_EVENT = b'{"actor": "store", '
"""The beginning of the line of an event that reports an upload."""
TAKE_OVERS = 20
"""Number of times that a new driver may find that the one before it has just written another manifest."""


class Stopped(Exception):
    """An upload was asked to stop."""


class StillChanging(OSError):
    """The folder changed during every scan."""


@dataclass(frozen=True)
class Mark:
    """The note of a run's folder about its copy. `folder`: the id under which manifests know the folder; `number`: no
    manifest that was sent from it has a higher one."""

    folder: str = ""
    number: int = 0

    def has_sent(self, manifest: Manifest) -> bool:
        """Whether the manifest was sent from this folder."""
        return self.folder == manifest.folder and manifest.number <= self.number


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
    """Called when the store has taken a part of a file, or need not, or has deleted one."""
    kept: Callable[[], None] = lambda: None
    """Called when the store has taken a whole file."""
    manifest: Manifest = field(default_factory=Manifest)
    """The newest manifest, of this driver or the one before it."""
    _sequence: int = 0
    _sent: dict[str, tuple[tuple[int, ...], StoredFile]] = field(default_factory=dict)
    """By key, the state of the local file when it was sent, and what was sent; no state if some spans are left."""
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
        folder = (read_mark(self.run_dir).folder if there else "") or uuid.uuid4().hex
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
        if not resume and found.files and RunFolder(Snapshot(self.store, found)).has_begun():
            raise UserError(
                f"{self.store.where()} already holds a run. Continue it with --resume, or choose another name with "
                "name=NAME"
            )
        there = (self.run_dir / CONFIG).is_file()
        if there and found.files and not read_mark(self.run_dir).has_sent(found):
            raise UserError(
                f"{self.run_dir} is not the folder from which {self.store.where()} was written last "
                f"({found.owner or 'another driver'} has gone on with the run elsewhere). Move {self.run_dir} away to "
                "resume from the store, or choose another name with name=NAME"
            )

    def mark(self) -> None:
        """Notes in the folder what its newest manifest is, so that a later driver knows the folder for its own."""
        note(self.run_dir, self.manifest, read_mark(self.run_dir))

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
        note(partial, self.manifest, Mark())
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

    def newest_checkpoint(self) -> int | None:
        """The step of the newest checkpoint in the store; None if it has none."""
        found = (
            re.fullmatch(rf"{CHECKPOINTS}/step-([0-9]+)/{re.escape(LOOP_FILE)}", key)
            for key in list(self.manifest.files)  # whole, as another thread may add to it
        )
        return max((int(match[1]) for match in found if match), default=None)

    # -- the upload ----------------------------------------------------------------------------------------------

    def upload(self) -> tuple[int, int]:
        """Sends what has changed since the newest manifest and commits the next one; returns the number of files and
        bytes sent. `events.jsonl` is not counted, because every upload that is counted adds an event to it; if nothing
        but such events is new, nothing is sent.

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
        known = {span for file in self.manifest.files.values() for span in file.spans}
        for _ in range(SCANS):
            before = self._replaced()
            files, key = dict[str, StoredFile](), ""
            try:
                for key in self._keys():
                    if key == EVENTS and self._only_own_events(files):
                        return self.manifest.files, count, num_bytes
                    files[key], fresh = self._send(key)
                    if fresh and key != EVENTS:
                        count += 1
                        num_bytes += sum(span.size for span in files[key].spans if span not in known)
            except FileNotFoundError:  # removed between the listing and the reading, or gone with the store
                if not self.run_dir.is_dir() or (self.run_dir / key).is_file():
                    raise
                continue
            if self._replaced() == before:
                return files, count, num_bytes
        raise StillChanging(f"{self.run_dir} changed during each of {SCANS} scans")

    def _only_own_events(self, others: dict[str, StoredFile]) -> bool:
        """Whether the newest manifest has these files and all events but those that report uploads."""
        known = self.manifest.files.get(EVENTS)
        if known is None or {**others, EVENTS: known} != self.manifest.files:
            return False
        with (self.run_dir / EVENTS).open("rb") as file:
            size = _length(EVENTS, file)
            file.seek(known.size)
            tail = file.read(min(max(0, size - known.size), OWN_EVENTS_BYTES + 1))
        return 0 < len(tail) <= OWN_EVENTS_BYTES and all(line.startswith(OWN_EVENT) for line in tail.splitlines())

    def _keys(self) -> Iterator[str]:
        """The keys to send: those of checkpoints first, the events last."""
        local = LocalStore(self.run_dir)
        yield from self._regular(CHECKPOINTS, local.list(f"{CHECKPOINTS}/"))
        others = (key for key in local.list() if not key.startswith((f"{CHECKPOINTS}/", *NOT_SENT)))
        yield from self._regular("", sorted(others, key=lambda key: key == EVENTS))

    def _regular(self, inside: str, keys: Iterable[str]) -> Iterator[str]:
        """The keys of regular files to which no link below the folder `inside` leads; also of files that were sent and
        are gone by now."""
        whole = (self.run_dir / inside).resolve()
        for key in keys:
            path, direct = self.run_dir / key, whole / PurePosixPath(key).relative_to(inside)
            if key in self._sent or (path.is_file() and path.resolve() == direct):
                yield key

    def _replaced(self) -> dict[Path, tuple[int, ...]]:
        """Facts that change when a checkpoint appears, is replaced, amended or removed, or parts are merged."""
        kinds = ((CHECKPOINTS, "step-*"), (GROUPS, "steps-*"), (SCORES, "steps-*"))
        found = (path for name, names in kinds for path in (self.run_dir / name).glob(names))
        return {path: _state(path) for path in found}

    def _send(self, key: str) -> tuple[StoredFile, bool]:
        """The file in the store, and whether it was sent just now."""
        path = self.run_dir / key
        state = _state(path)
        if key in self._sent and self._sent[key][0] == state:
            return self._sent[key][1], False
        with path.open("rb") as file:
            stored = self._stored_as(key, file, state)
        self._sent[key] = state, stored
        return stored, stored != self.manifest.files.get(key)

    def _stored_as(self, key: str, file: BinaryIO, state: tuple[int, ...]) -> StoredFile:
        """Sends what the store does not have of a file: after a resume nothing is sent again. What was sent when this
        fails counts at the next call."""
        size, (sent, known) = _length(key, file), self._sent.get(key, ((), self.manifest.files.get(key)))
        spans = self._unchanged(key, file, size, known, replaced=sent[:1] != state[:1]) if known else []
        at = sum(span.size for span in spans)
        if known and at == known.size == size:
            return known
        for start in range(at, size, SPAN_BYTES if grows(key) else max(size, 1)):
            end = min(start + SPAN_BYTES, size) if grows(key) else size
            spans.append(self._put(key, file, start, end))
            self._sent[key] = (), StoredFile(spans=tuple(spans), modified_ns=state[-1])
        return StoredFile(spans=tuple(spans), modified_ns=state[-1])

    def _unchanged(self, key: str, file: BinaryIO, size: int, known: StoredFile, replaced: bool) -> list[Span]:
        """The first spans, as many as the local file, of which `size` bytes count, begins with; a shorter one only at
        its end. If the file was neither `replaced` nor cut, the last one stands for those before."""
        starts = [0, *accumulate(span.size for span in known.spans)]
        placed = [
            (span, start)
            for span, start in zip(known.spans, starts, strict=False)
            if start + span.size == size or (start + SPAN_BYTES <= size and span.size == SPAN_BYTES and grows(key))
        ]
        if replaced or size < known.size or not placed or not self._holds(file, *placed[-1]):
            placed = list(takewhile(lambda one: self._holds(file, *one), placed))
        return [span for span, _ in placed]

    def _holds(self, file: BinaryIO, span: Span, start: int) -> bool:
        """Whether the local file has the bytes of a span from `start` on."""
        digest = hashlib.sha256()
        for chunk in self._chunks(file, start, start + span.size):
            digest.update(chunk)
            self.moved()
        return digest.hexdigest() == span.sha256

    def _put(self, key: str, file: BinaryIO, start: int, end: int) -> Span:
        """Sends the bytes of a file between two positions, under a name that nothing in the store has."""
        self._sequence += 1
        span = Span(generation=self.generation, sequence=self._sequence, size=end - start, sha256="0" * 64)
        name, digest = span.name(key), hashlib.sha256()
        if self._stored is not None:
            self._stored.add(name)
        with self.store.put(name) as out:
            for sent, chunk in enumerate(self._chunks(file, start, end)):
                digest.update(chunk)
                out.write(chunk)
                if sent > BUFFERED:
                    self.moved()
        self.kept()
        return span.model_copy(update={"sha256": digest.hexdigest()})

    def _chunks(self, file: BinaryIO, start: int, end: int) -> Iterator[bytes]:
        """The bytes of a file between two positions."""
        file.seek(start)
        while start < end:
            self._go_on()
            chunk = file.read(min(end - start, CHUNK_BYTES))
            if not chunk:
                raise OSError(f"{file.name} became shorter while it was read")
            start += len(chunk)
            yield chunk

    def _go_on(self) -> None:
        if self.stop():
            raise Stopped

    def _commit(self, changes: dict[str, Any]) -> None:
        wanted: dict[str, Any] = {**changes, "generation": self.generation, "owner": self.owner}
        while True:
            made = self.manifest.model_copy(update={**wanted, "number": self.manifest.number + 1})
            if (mark := read_mark(self.run_dir)).folder == made.folder:
                note(self.run_dir, made, mark)
            there = commit(self.store, made)
            self._before, self.manifest = self.manifest.names(), there
            if there == made:
                return

    # -- obsolete files ------------------------------------------------------------------------------------------

    def _clear(self) -> None:
        """Deletes manifests before the last two, and files that neither of these names. What cannot be deleted now is
        left to the next call, or to the next driver."""
        needed = self.manifest.names() | self._before
        try:
            for number in numbers(self.store):
                if number < self.manifest.number - 1:
                    self.store.delete(manifest_key(number))
                    self.moved()
            if self._stored is None:
                self._stored = self._earlier()
            for name in self._stored - needed:
                self.store.delete(name)
                self._stored.discard(name)
                self.moved()
        except OSError as error:
            log.warning("obsolete files stay in %s for now: %s", self.store.where(), reason(error))

    def _earlier(self) -> set[str]:
        """Files of the store that this driver or one before it has sent; those of a later one are not its to delete."""
        return {name for name in self.store.list(f"{FILES}/") if generation_of(name) <= self.generation}


def _state(path: Path) -> tuple[int, ...]:
    """Facts that change when a file is replaced or appended to, or an entry of a folder is; the last is the time of
    modification in nanoseconds."""
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _length(key: str, file: BinaryIO) -> int:
    """Bytes of a file that are sent: all, or up to the last line break."""
    size = start = file.seek(0, os.SEEK_END)
    if not key.endswith(LINES):
        return size
    found = -1
    for most in TAIL_BYTES:
        start = max(0, size - most)
        file.seek(start)
        found = file.read(size - start).rfind(b"\n")
        if found >= 0 or not start:
            break
    return start + found + 1


def grows(key: str) -> bool:
    """Whether a file is only appended to while the run is live."""
    return key.endswith((LINES, WANDB)) or TENSORBOARD in PurePosixPath(key).name


def read_mark(run_dir: Path) -> Mark:
    """The mark of a run's folder; an empty one if it has none. UserError if it is damaged."""
    path = run_dir / MARK
    if not path.is_file():
        return Mark()
    with bad_files_are_the_users():
        found = parse_object(read_bytes(path, 1 << 16), str(path))
        if not isinstance(folder := found.get("folder"), str) or not isinstance(number := found.get("number"), int):
            raise Unreadable(f"{path} is damaged: it names no folder and number of a manifest")
    return Mark(folder, number)


def note(run_dir: Path, manifest: Manifest, before: Mark) -> None:
    """Notes in a run's folder, whose mark was read `before`, that the manifest is its own; durable on return."""
    if not before.has_sent(manifest):
        write_whole(run_dir / MARK, json.dumps({"folder": manifest.folder, "number": manifest.number}))
