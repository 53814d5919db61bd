"""The manifests of a run in a store: each lists the files of one consistent state of the run. Pure.

    manifests/000000042.json                  manifest 42; the newest is the state of the run
    files/groups/step-000012.g3-17.parquet    a file, as the driver of generation 3 has sent it, its 17th upload
    files/metrics.g3-18.jsonl                 a span of a file that is appended to
    lease/                                    who may write (`cluster.runs.in_store.lease`)

A closed file is stored whole. A file that is appended to is stored in spans of `SPAN_BYTES`, of which the last may be
shorter: a full span is sent once, and the last one anew whenever the file has grown. So an upload sends at most
`SPAN_BYTES` again per such file, however long the run is.

Invariants:

- A file of the store is written once, under a name that no other upload has. A manifest names files that were complete
  before it was written, each with size and SHA-256. So any manifest that is there describes a whole run, whenever its
  driver or the store went away.
- Manifest k + 1 is created only if it does not exist, by a driver that has read k. Of two drivers one is refused
  (`Superseded`): whoever takes a run over writes the next manifest first, and after that the other can change nothing.
- Files that neither the newest manifest nor the one before it names are deleted, so that a reader has time to finish.
- A manifest may come from somebody else: its keys stay inside a run's folder, the names in the store follow from them,
  and the content is verified.
"""

from __future__ import annotations

import hashlib
import io
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from posixpath import splitext
from typing import Annotated, Any, BinaryIO, Literal

from pydantic import AfterValidator, Field, ValidationError

from squelch.kit.archive.bucket import StoreUrlError, open_store
from squelch.kit.archive.store import LocalStore, RangeReader, Stat, Store
from squelch.kit.base.errors import UserError, bad_files_are_the_users
from squelch.kit.base.settings import Settings
from squelch.kit.untrusted.files import MIB, Unreadable, read_bounded
from squelch.kit.untrusted.text import parse_object

SCHEMA = 3
READ_BY = "03d7dc21"
"""The last commit of Squelch that reads manifests of schemas 1 and 2."""
MANIFESTS, FILES = "manifests", "files"
SPAN_BYTES = MIB
"""Bytes of each span of a file that is appended to, but its last."""
MAX_BYTES = 256 * MIB
"""Bytes of a manifest."""
CHUNK_BYTES = 8 << 20
VERIFIED_BYTES = 16 * MIB
"""A closed file of at most so many bytes is read whole and verified; a larger one is read in ranges, and verified where
it is copied."""
READ_ATTEMPTS = 5
"""Number of times that a reader looks for the newest manifest, while a driver replaces it."""
_NUMBER = re.compile(rf"{MANIFESTS}/([0-9]{{9}})\.json")
_GENERATION = re.compile(r"\.g([0-9]{1,9})-[0-9]{1,12}(?=\.|$)")


class Superseded(UserError):
    """Another driver has taken the run over."""


def _of_a_run(key: str) -> str:
    parts = PurePosixPath(key).parts
    if not parts or key != "/".join(parts) or any(part.startswith(".") for part in parts) or "\x00" in key:
        raise ValueError(f"{key!r} is no file of a run's folder")
    return key


class Span(Settings):
    """Consecutive bytes of a run's file, in a file of the store: the upload that sent them, their number and digest."""

    generation: int = Field(ge=0, lt=10**9)
    sequence: int = Field(ge=0, lt=10**12)
    size: int = Field(ge=1, lt=2**50)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")

    def name(self, key: str) -> str:
        """The key in the store; the suffix of the run's file `key` stays, so that other programs know the format."""
        stem, suffix = splitext(key)
        return f"{FILES}/{stem}.g{self.generation}-{self.sequence}{suffix}"


class StoredFile(Settings):
    """One file of a run: its spans in order, none if it is empty, and its time of modification on the driver's disk,
    nanoseconds since 1970."""

    spans: tuple[Span, ...] = ()
    modified_ns: int = Field(ge=0)

    def _faults(self) -> Iterator[str]:
        *full, last = self.spans or (None,)
        if full and (last is None or last.size > SPAN_BYTES or any(one.size != SPAN_BYTES for one in full)):
            yield f"spans before the last one have {SPAN_BYTES} bytes, and the last one has no more"

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(span.size for span in self.spans)


class Manifest(Settings):
    """One consistent state of a run. `folder`: an id of the local folder that it was sent from; `files`: by key."""

    schema_version: Literal[3] = SCHEMA
    number: int = Field(0, ge=0)
    generation: int = Field(0, ge=0)
    owner: str = Field("", max_length=300)
    folder: str = Field("", max_length=64)
    files: dict[Annotated[str, AfterValidator(_of_a_run)], StoredFile] = Field(default_factory=dict)

    def names(self) -> set[str]:
        """The keys in the store of all files."""
        return {span.name(key) for key, file in self.files.items() for span in file.spans}


def generation_of(name: str) -> int:
    """The generation of the driver that has sent a file of the store; 0 for a name of another form."""
    found = _GENERATION.findall(PurePosixPath(name).name)
    return int(found[-1]) if found else 0


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
        known: a manifest that was read before; if it still is the newest, it is not read again.

    Raises:
        UserError: it is damaged, or of another version of Squelch.
        OSError: the store cannot be read.
    """
    for _ in range(READ_ATTEMPTS):
        with bad_files_are_the_users():
            if not (found := numbers(store)):
                return Manifest()
            if known is not None and known.number == found[-1]:
                return known
            try:
                return _read(store, found[-1])
            except FileNotFoundError:
                continue  # the driver has replaced it
    raise OSError(f"{store.where()}: its manifests change faster than they can be read")


def _read(store: Store, number: int) -> Manifest:
    where = store.where(manifest_key(number))
    with store.get(manifest_key(number)) as file:
        found = parse_object(read_bounded(file, MAX_BYTES, where), where)
    version = found.get("schema_version", 1)
    if version in (1, 2):
        raise Unreadable(f"{where} has schema {version}, which Squelch reads up to its commit {READ_BY}")
    if version != SCHEMA:
        raise Unreadable(f"{where} has schema {version!r}, and this Squelch reads {SCHEMA}; update it")
    try:
        manifest = Manifest.model_validate(found)
    except ValidationError as error:
        raise Unreadable(f"{where} is no manifest ({error.errors()[0]['msg']})") from error
    if manifest.number != number:
        raise UserError(f"{where} says that it is manifest {manifest.number}; the store was changed by hand")
    return manifest


def _damaged(store: Store, name: str) -> str:
    return f"{store.where(name)} is not the file that the manifest names: it is damaged"


def commit(store: Store, manifest: Manifest) -> Manifest:
    """Makes a manifest the newest. Returns it, or what this driver has written under its number before, without getting
    the store's answer. Raises Superseded if another driver has written that number."""
    if store.create(manifest_key(manifest.number), manifest.model_dump_json().encode()):
        return manifest
    other = newest(store)
    if (other.number, other.generation) != (manifest.number, manifest.generation):
        raise Superseded(
            f"{store.where()}: {other.owner or 'another driver'} goes on with this run. This driver may not write "
            "to the store any more; its files are on its disk"
        )
    return other


class ReadOnly(ABC):
    """The files of a run as a store that can only be read."""

    @abstractmethod
    def where(self, key: str = "") -> str:
        """As `Store.where`."""

    def put(self, key: str) -> Any:
        """Refused."""
        raise PermissionError(f"{self.where(key)}: a run in a store is written by its driver only")

    def create(self, key: str, data: bytes) -> bool:
        """Refused, as `put`."""
        return self.put(key)

    def delete(self, key: str) -> None:
        """Refused, as `put`."""
        self.put(key)


@dataclass(frozen=True)
class Snapshot(ReadOnly):
    """The files of one manifest."""

    store: Store
    manifest: Manifest

    def get(self, key: str) -> BinaryIO:
        """As `Store.get`. FileNotFoundError if the driver has replaced the file twice since: its last span is opened
        first, because whatever replaces a span replaces those after it."""
        found = self.manifest.files.get(key)
        if found is None:
            raise FileNotFoundError(f"{self.where(key)} is not in the run's newest manifest")
        if not found.spans:
            return io.BytesIO()
        only, last = len(found.spans) == 1, found.spans[-1]
        if only and last.size <= VERIFIED_BYTES:
            return io.BytesIO(_verified(self.store, key, last))
        opened = self.store.get(last.name(key))
        if only:
            return opened
        opened.close()
        return io.BufferedReader(_Spans(self.store, key, found), SPAN_BYTES)

    def chunks(self, key: str) -> Iterator[bytes]:
        """The bytes of a file. Raises UserError after the first span that is not the manifest's."""
        for span in self.manifest.files[key].spans:
            digest, size = hashlib.sha256(), 0
            with self.store.get(span.name(key)) as file:
                while chunk := file.read(CHUNK_BYTES):
                    digest.update(chunk)
                    size += len(chunk)
                    yield chunk
            if (size, digest.hexdigest()) != (span.size, span.sha256):
                raise UserError(_damaged(self.store, span.name(key)))

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


class _Spans(RangeReader):
    """The spans of a file as one. One of them is in memory at a time, verified."""

    def __init__(self, store: Store, key: str, stored: StoredFile) -> None:
        super().__init__(stored.size)
        self._store, self._key, self._stored = store, key, stored
        self._number, self._data = -1, b""

    def _read_at(self, position: int, length: int) -> bytes:
        number, start = divmod(position, SPAN_BYTES)
        if number != self._number:
            self._number, self._data = number, _verified(self._store, self._key, self._stored.spans[number])
        return self._data[start : start + length]


def _verified(store: Store, key: str, span: Span) -> bytes:
    """The bytes of a span. OSError if they are not the manifest's."""
    with store.get(name := span.name(key)) as file:
        data = file.read(span.size + 1)
    if hashlib.sha256(data).hexdigest() != span.sha256:
        raise OSError(_damaged(store, name))
    return data


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
