"""The manifests of a run in a store: each lists the files of one consistent state of the run. Pure.

    manifests/000000042.json                  manifest 42; the newest is the state of the run
    files/groups/step-000012.g3-17.parquet    a file, as the driver of generation 3 has sent it, its 17th
    lease/                                    who may write (`cluster.runs.in_store.lease`)

Invariants:

- A file of the store is written once, under a name that no other upload has. A manifest names files that were complete
  before it was written, each with size and SHA-256. So any manifest that is there describes a whole run, whenever its
  driver or the store went away.
- Manifest k + 1 is created only if it does not exist, by a driver that has read k. Of two drivers one is refused
  (`Superseded`): whoever takes a run over writes the next manifest first, and after that the other can change nothing.
- Files that neither the newest manifest nor the one before it names are deleted, so that a reader has time to finish.
- A manifest may come from somebody else: its keys stay inside a run's folder, and what it names is verified.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from pydantic import ConfigDict, Field, ValidationError, field_validator

from actors.archive.bucket import StoreUrlError, open_store
from actors.archive.store import LocalStore, Stat, Store
from cluster.errors import UserError, bad_files_are_the_users
from envs.settings import Settings
from envs.untrusted.files import MIB, Unreadable, read_bounded
from envs.untrusted.text import parse_object

SCHEMA = 1
MANIFESTS, FILES = "manifests", "files"
MAX_BYTES = 256 * MIB
CHUNK_BYTES = 8 << 20
READ_ATTEMPTS = 5
"""Number of times that a reader looks for the newest manifest, while a driver replaces it."""
_NUMBER = re.compile(rf"{MANIFESTS}/([0-9]{{9}})\.json")
_OBJECT = re.compile(rf"{FILES}/[^\x00-\x1f]{{1,900}}")
_GENERATION = re.compile(r"\.g([0-9]{1,9})-[0-9]{1,12}(?=\.|$)")


class Superseded(UserError):
    """Another driver has taken the run over."""


class StoredFile(Settings):
    """One file of a run. `name`: its key in the store."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    size: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    modified_ns: int = Field(ge=0)

    @field_validator("name")
    @classmethod
    def _inside(cls, name: str) -> str:
        if not _OBJECT.fullmatch(name) or ".." in name.split("/"):
            raise ValueError(f"{name!r} is no file of a run's store")
        return name


class Manifest(Settings):
    """One consistent state of a run. `folder`: an id of the local folder that it was sent from; `files`: by key."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = SCHEMA
    number: int = Field(0, ge=0)
    generation: int = Field(0, ge=0)
    owner: str = Field("", max_length=300)
    folder: str = Field("", max_length=64)
    files: dict[str, StoredFile] = Field(default_factory=dict)

    @field_validator("files")
    @classmethod
    def _keys(cls, files: dict[str, StoredFile]) -> dict[str, StoredFile]:
        for key in files:
            parts = PurePosixPath(key).parts
            if not parts or key != "/".join(parts) or any(part.startswith(".") for part in parts) or "\x00" in key:
                raise ValueError(f"{key!r} is no file of a run's folder")
        return files

    def names(self) -> set[str]:
        """The keys in the store of all files."""
        return {file.name for file in self.files.values()}


def object_name(key: str, generation: int, sequence: int) -> str:
    """The key in the store of an upload of a run's file; the suffix stays, so that other programs know the format."""
    path = PurePosixPath(key)
    return f"{FILES}/{path.with_name(f'{path.stem}.g{generation}-{sequence}{path.suffix}')}"


def manifest_key(number: int) -> str:
    """The key of a manifest."""
    return f"{MANIFESTS}/{number:09d}.json"


def numbers(store: Store) -> list[int]:
    """The numbers of the manifests in a store, ascending."""
    found = (_NUMBER.fullmatch(key) for key in store.list(f"{MANIFESTS}/"))
    return sorted(int(match[1]) for match in found if match)


def newest(store: Store) -> Manifest:
    """The newest manifest; one without files if there is none.

    Raises:
        UserError: it is damaged, or of a newer version of Squelch.
        OSError: the store cannot be read.
    """
    for _ in range(READ_ATTEMPTS):
        found = numbers(store)
        if not found:
            return Manifest()
        try:
            return _read(store, found[-1])
        except FileNotFoundError:  # replaced by a newer one meanwhile
            continue
    raise OSError(f"{store.where()}: its manifests change faster than they can be read")


def _read(store: Store, number: int) -> Manifest:
    where = store.where(manifest_key(number))
    with bad_files_are_the_users(), store.get(manifest_key(number)) as file:
        found = parse_object(read_bounded(file, MAX_BYTES, where), where)
        if found.get("schema_version", SCHEMA) != SCHEMA:
            raise Unreadable(
                f"{where} has schema {found['schema_version']!r}, and this Squelch reads {SCHEMA}; update it"
            )
        try:
            manifest = Manifest.model_validate(found)
        except ValidationError as error:
            raise Unreadable(f"{where} is no manifest ({error.errors()[0]['msg']})") from error
    if manifest.number != number:
        raise UserError(f"{where} says that it is manifest {manifest.number}; the store was changed by hand")
    return manifest


def commit(store: Store, manifest: Manifest) -> Manifest:
    """Makes a manifest the newest. Returns it, or what this driver has written under its number before, without getting
    the store's answer. Raises Superseded if another driver has written that number."""
    data = json.dumps(manifest.model_dump()).encode()
    if store.create(manifest_key(manifest.number), data):
        return manifest
    other = newest(store)
    if (other.number, other.generation) != (manifest.number, manifest.generation):
        raise Superseded(
            f"{store.where()}: {other.owner or 'another driver'} goes on with this run. This driver may not write "
            "to the store any more; its files are on its disk"
        )
    return other


def generation_of(name: str) -> int:
    """The generation of the driver that has sent a file of the store; 0 for a name of another form."""
    found = _GENERATION.findall(PurePosixPath(name).name)
    return int(found[-1]) if found else 0


@dataclass(frozen=True)
class Snapshot:
    """The files of one manifest, as a store that can only be read."""

    store: Store
    manifest: Manifest

    def get(self, key: str) -> BinaryIO:
        """As `Store.get`."""
        found = self.manifest.files.get(key)
        if found is None:
            raise FileNotFoundError(f"{self.where(key)} is not in the run's newest manifest")
        return self.store.get(found.name)

    def chunks(self, key: str) -> Iterator[bytes]:
        """The bytes of a file. Raises UserError at the end if they are not those of the manifest."""
        wanted, digest, size = self.manifest.files[key], hashlib.sha256(), 0
        with self.get(key) as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
                yield chunk
        if (size, digest.hexdigest()) != (wanted.size, wanted.sha256):
            raise UserError(f"{self.store.where(wanted.name)} is not the file that the manifest names: it is damaged")

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
