"""The manifests of a run in a store: each lists the files of one consistent state of the run. Pure.

    manifests/000000042.json                  manifest 42; the newest is the state of the run
    pages/page.g3-16.json                     a part of its list of files (`cluster.runs.in_store.listing`)
    files/groups/step-000012.g3-17.parquet    a file, as the driver of generation 3 has sent it, its 17th upload
    files/metrics.g3-18.jsonl                 a piece of a file that is appended to
    lease/                                    who may write (`cluster.runs.in_store.lease`)

Invariants:

- A file of the store is written once, under a name that no other upload has. A manifest names files that were complete
  before it was written, each with size and SHA-256. So any manifest that is there describes a whole run, whenever its
  driver or the store went away.
- Manifest k + 1 is created only if it does not exist, by a driver that has read k. Of two drivers one is refused
  (`Superseded`): whoever takes a run over writes the next manifest first, and after that the other can change nothing.
- Files that neither the newest manifest nor the one before it names are deleted, so that a reader has time to finish.
- A manifest may come from somebody else: its keys stay inside a run's folder, and what it names is verified.

Schema 1, which older runs have, lists every file whole and has no pages; it is read, and continued in schema 2.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Literal

from pydantic import ConfigDict, Field, ValidationError

from squelch.actors.archive.bucket import StoreUrlError, open_store
from squelch.actors.archive.store import LocalStore, RangeReader, Stat, Store
from squelch.cluster.errors import UserError, bad_files_are_the_users
from squelch.cluster.runs.in_store.listing import (
    MAX_BYTES,
    Changes,
    Page,
    Piece,
    StoredFile,
    difference,
    files_of,
    pieces_of,
)
from squelch.envs.settings import Settings
from squelch.envs.untrusted.files import MIB, Unreadable, read_bounded, reason
from squelch.envs.untrusted.text import parse_object

SCHEMA = 2
MANIFESTS = "manifests"
CHUNK_BYTES = 8 << 20
BUFFER_BYTES = 1 << 20
READ_ATTEMPTS = 5
"""Number of times that a reader looks for the newest manifest, while a driver replaces it."""
_NUMBER = re.compile(rf"{MANIFESTS}/([0-9]{{9}})\.json")


class Superseded(UserError):
    """Another driver has taken the run over."""


class _Head(Settings):
    """What manifests of every schema say."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int = Field(0, ge=0)
    generation: int = Field(0, ge=0)
    owner: str = Field("", max_length=300)
    folder: str = Field("", max_length=64)


class _Content(_Head):
    """The content of a manifest's file."""

    schema_version: Literal[2] = SCHEMA
    pages: tuple[Page, ...] = ()
    changes: Changes = Field(default_factory=Changes)


class _Content1(_Head):
    """The content of a manifest's file of schema 1. `files`: name, size, digest and time by key."""

    schema_version: Literal[1] = 1
    files: dict[str, dict[str, Any]] = Field(default_factory=dict)


@dataclass(frozen=True)
class Manifest:
    """One consistent state of a run. `folder`: an id of the local folder that it was sent from; `files`: by key;
    `pages`: the files of the store that hold most of the list, with their content."""

    number: int = 0
    generation: int = 0
    owner: str = ""
    folder: str = ""
    files: dict[str, StoredFile] = field(default_factory=dict)
    pages: tuple[tuple[Page, Changes], ...] = ()

    def names(self) -> set[str]:
        """The keys in the store of all that belongs to this state."""
        return {*pieces_of(self.files), *(page.name for page, _ in self.pages)}

    def changes(self, num_pages: int | None = None) -> Changes:
        """The changes since the first `num_pages` pages, or since all."""
        return difference(listed(changes for _, changes in self.pages[:num_pages]), pieces_of(self.files))


def listed(changes: Iterable[Changes]) -> dict[str, Piece]:
    """The pieces, by name, after changes one after the other."""
    pieces = dict[str, Piece]()
    for each in changes:
        each.apply(pieces)
    return pieces


def encoded(changes: Changes) -> dict[str, Any]:
    """Changes as JSON, without what is as usual."""
    return changes.model_dump(exclude_defaults=True)


def packed(content: dict[str, Any]) -> bytes:
    """JSON without spaces."""
    return json.dumps(content, separators=(",", ":")).encode()


def manifest_key(number: int) -> str:
    """The key of a manifest."""
    return f"{MANIFESTS}/{number:09d}.json"


def numbers(store: Store) -> list[int]:
    """The numbers of the manifests in a store, ascending."""
    found = (_NUMBER.fullmatch(key) for key in store.list(f"{MANIFESTS}/"))
    return sorted(int(match[1]) for match in found if match)


def newest(store: Store, known: Manifest | None = None) -> Manifest:
    """The newest manifest; one without files if there is none.

    Args:
        known: a manifest that was read before: what it has in common with the newest is not read again.

    Raises:
        UserError: it is damaged, or of a newer version of Squelch.
        OSError: the store cannot be read.
    """
    for _ in range(READ_ATTEMPTS):
        with bad_files_are_the_users():
            if not (found := numbers(store)):
                return Manifest()
            if known is not None and known.number == found[-1]:
                return known
            try:
                return _read(store, found[-1], dict(known.pages if known else ()))
            except FileNotFoundError as error:
                if numbers(store)[-1:] == found[-1:]:  # else it was replaced by a newer one meanwhile
                    where = store.where(manifest_key(found[-1]))
                    raise Unreadable(f"{where} names a part that is missing ({reason(error)})") from error
    raise OSError(f"{store.where()}: its manifests change faster than they can be read")


def _read(store: Store, number: int, known: Mapping[Page, Changes]) -> Manifest:
    where = store.where(manifest_key(number))
    with store.get(manifest_key(number)) as file:
        found = parse_object(read_bounded(file, MAX_BYTES, where), where)
    with _checking(where, "manifest"):
        manifest = _decoded(store, found, where, known)
    if manifest.number != number:
        raise UserError(f"{where} says that it is manifest {manifest.number}; the store was changed by hand")
    return manifest


def _decoded(store: Store, found: dict[str, Any], where: str, known: Mapping[Page, Changes]) -> Manifest:
    version = found.get("schema_version", 1)
    if version == 1:
        content1 = _Content1.model_validate(found)
        pieces = [Piece.model_validate({**file, "key": key}) for key, file in content1.files.items()]
        return Manifest(content1.number, content1.generation, content1.owner, content1.folder, files_of(pieces))
    if version != SCHEMA:
        raise Unreadable(f"{where} has schema {version!r}, and this Squelch reads {SCHEMA}; update it")
    content = _Content.model_validate(found)
    if sum(page.size for page in content.pages) > MAX_BYTES:
        raise Unreadable(f"{where} has a list of files that is larger than {MAX_BYTES // MIB} MiB")
    pages = tuple((page, known[page] if page in known else _page(store, page)) for page in content.pages)
    files = files_of(listed([*(changes for _, changes in pages), content.changes]).values())
    return Manifest(content.number, content.generation, content.owner, content.folder, files, pages)


def _page(store: Store, page: Page) -> Changes:
    where = store.where(page.name)
    with store.get(page.name) as file:
        data = read_bounded(file, page.size, where)
    if hashlib.sha256(data).hexdigest() != page.sha256:
        raise Unreadable(_damaged(store, page.name))
    with _checking(where, "list of files"):
        return Changes.model_validate(parse_object(data, where))


@contextmanager
def _checking(where: str, kind: str) -> Iterator[None]:
    try:
        yield
    except ValidationError as error:
        raise Unreadable(f"{where} is no {kind} ({error.errors()[0]['msg']})") from error
    except Unreadable:
        raise
    except ValueError as error:
        raise Unreadable(f"{where} is no {kind} ({error})") from error


def _damaged(store: Store, name: str) -> str:
    return f"{store.where(name)} is not the file that the manifest names: it is damaged"


def commit(store: Store, manifest: Manifest) -> Manifest:
    """Makes a manifest the newest. Returns it, or what this driver has written under its number before, without getting
    the store's answer. Raises Superseded if another driver has written that number."""
    content = {
        "schema_version": SCHEMA,
        "number": manifest.number,
        "generation": manifest.generation,
        "owner": manifest.owner,
        "folder": manifest.folder,
        "pages": [page.model_dump(exclude_defaults=True) for page, _ in manifest.pages],
        "changes": encoded(manifest.changes()),
    }
    if store.create(manifest_key(manifest.number), packed(content)):
        return manifest
    other = newest(store)
    if (other.number, other.generation) != (manifest.number, manifest.generation):
        raise Superseded(
            f"{store.where()}: {other.owner or 'another driver'} goes on with this run. This driver may not write "
            "to the store any more; its files are on its disk"
        )
    return other


@dataclass(frozen=True)
class Snapshot:
    """The files of one manifest, as a store that can only be read."""

    store: Store
    manifest: Manifest

    def get(self, key: str) -> BinaryIO:
        """As `Store.get`. Whatever replaces pieces of a file replaces its last one, so that FileNotFoundError for that
        one says that the driver has sent the file anew."""
        found = self.manifest.files.get(key)
        if found is None:
            raise FileNotFoundError(f"{self.where(key)} is not in the run's newest manifest")
        last = self.store.get(found.pieces[-1].name)
        return last if len(found.pieces) == 1 else io.BufferedReader(_Joined(self.store, found, last), BUFFER_BYTES)

    def chunks(self, key: str) -> Iterator[bytes]:
        """The bytes of a file. Raises UserError after the first piece that is not the manifest's."""
        for piece in self.manifest.files[key].pieces:
            digest, size = hashlib.sha256(), 0
            with self.store.get(piece.name) as file:
                while chunk := file.read(CHUNK_BYTES):
                    digest.update(chunk)
                    size += len(chunk)
                    yield chunk
            if (size, digest.hexdigest()) != (piece.size, piece.sha256):
                raise UserError(_damaged(self.store, piece.name))

    def list(self, prefix: str = "") -> list[str]:
        """As `Store.list`."""
        return sorted(key for key in self.manifest.files if key.startswith(prefix))

    def stat(self, key: str) -> Stat | None:
        """As `Store.stat`; the time is that of the file on the driver's disk."""
        found = self.manifest.files.get(key)
        return None if found is None else Stat(found.size, found.modified_ns)

    def where(self, key: str = "") -> str:
        """As `Store.where`."""
        return self.store.where(key)

    def put(self, key: str) -> Any:
        """Refused: a snapshot is read only."""
        raise PermissionError(f"{self.where(key)}: a run in a store is written by its driver only")

    def create(self, key: str, data: bytes) -> bool:
        """Refused, as `put`."""
        return self.put(key)

    def delete(self, key: str) -> None:
        """Refused, as `put`."""
        self.put(key)


class _Joined(RangeReader):
    """The pieces of a file as one. One of them is open at a time; `last` is, from the beginning."""

    def __init__(self, store: Store, stored: StoredFile, last: BinaryIO) -> None:
        super().__init__(stored.size)
        self._store, self._stored = store, stored
        self._piece, self._file = stored.pieces[-1], last

    def _read_at(self, position: int, length: int) -> bytes:
        if not self._piece.start <= position < self._piece.end:
            self._open(next(piece for piece in self._stored.pieces if position < piece.end))
        self._file.seek(position - self._piece.start)
        data = self._file.read(min(length, self._piece.end - position))
        if not data:
            raise OSError(_damaged(self._store, self._piece.name))
        return data

    def _open(self, piece: Piece) -> None:
        self._file.close()
        self._file, self._piece = self._store.get(piece.name), piece

    def close(self) -> None:
        self._file.close()
        super().close()


def find_run(url: str) -> Snapshot:
    """The newest state of the run at a URL, e.g. `s3://bucket/prefix/NAME`.

    Raises:
        UserError: there is no such store, it cannot be read, or it holds no run.
    """
    with answering(url):
        store = open_store(url)
        manifest = newest(store)
    if not manifest.files:
        raise UserError(f"{url} holds no run: give the place of a run in its store, e.g. s3://bucket/prefix/NAME")
    return Snapshot(store, manifest)


@contextmanager
def answering(url: str) -> Iterator[None]:
    """Turns the error of a store that cannot be used into a UserError that names it."""
    try:
        yield
    except StoreUrlError as error:
        raise UserError(str(error)) from error
    except OSError as error:
        text = words(error)
        raise UserError(text if url in text else f"{url}: {text}") from error


def words(error: OSError) -> str:
    """The error of a store or a disk in a line that names the place."""
    text, place = str(error.strerror or error), str(error.filename or "")
    return text if place in text else f"{place}: {text}"


def require_base(url: str) -> None:
    """Raises UserError if `store` is a folder that does not exist: a folder that is not mounted must not be made."""
    with answering(url):
        base = open_store(url)
        if isinstance(base, LocalStore) and not base.folder.is_dir():
            raise UserError(f"store: {base.folder} is no folder on this host; mount or make it, or correct the setting")
