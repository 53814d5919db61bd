"""The parts of which a run's files, and the list of them, consist in a store. Pure.

    file of the run     pieces: consecutive spans of its bytes, each in a file of the store. A file that is replaced has
                        one piece; a file that is appended to gets a further piece per upload
    list of all pieces  pages, each with the changes since the pages before it, and the changes since the last page,
                        which are in the manifest itself

Both grow at their end only, and both are merged in the same way (`merge`): whenever `fan` neighbours have the same
level, one of the next level replaces them. After n additions there are at most `(fan - 1) * (1 + log_fan(n))` of them,
and each byte was sent at most `1 + log_fan(n)` times. So neither the files nor their list make the traffic grow with
the square of the run's length.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from pydantic import ConfigDict, Field, field_validator

from squelch.envs.settings import Settings
from squelch.envs.untrusted.files import MIB

FILES, PAGES = "files", "pages"
MAX_BYTES = 256 * MIB
"""Bytes of a manifest or a page."""
PIECE_FAN = 32
"""Pieces of one level that are merged: each byte of a file is sent at most 3 times in 32,767 uploads."""
PAGE_FAN = 4
PAGE_CHANGES = 32
"""Changes that a manifest may hold itself; more become a page."""
_OBJECT = re.compile(rf"{FILES}/[^\x00-\x1f]{{1,900}}")
_PAGE = re.compile(rf"{PAGES}/page\.g[0-9]{{1,9}}-[0-9]{{1,12}}\.json")
_GENERATION = re.compile(r"\.g([0-9]{1,9})-[0-9]{1,12}(?=\.|$)")


class _Stored(Settings):
    """A file of the store: its key there, its size in bytes and its digest."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    size: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    level: int = Field(0, ge=0, le=64)
    """Number of mergers behind it."""


class Piece(_Stored):
    """Bytes `start` to `start + size` of the run's file `key`. `modified_ns`: the file's time when they were sent."""

    key: str
    start: int = Field(0, ge=0)
    modified_ns: int = Field(ge=0)

    @field_validator("name")
    @classmethod
    def _of_a_store(cls, name: str) -> str:
        if not _OBJECT.fullmatch(name) or ".." in name.split("/"):
            raise ValueError(f"{name!r} is no file of a run's store")
        return name

    @field_validator("key")
    @classmethod
    def _of_a_run(cls, key: str) -> str:
        parts = PurePosixPath(key).parts
        if not parts or key != "/".join(parts) or any(part.startswith(".") for part in parts) or "\x00" in key:
            raise ValueError(f"{key!r} is no file of a run's folder")
        return key

    @property
    def end(self) -> int:
        """The position after its last byte."""
        return self.start + self.size


class Page(_Stored):
    """A file of the store that holds `Changes`."""

    size: int = Field(ge=0, le=MAX_BYTES)

    @field_validator("name")
    @classmethod
    def _of_a_store(cls, name: str) -> str:
        if not _PAGE.fullmatch(name):
            raise ValueError(f"{name!r} is no page of a run's list")
        return name


class Changes(Settings):
    """Differences of two lists of pieces. `removed`: names."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    added: tuple[Piece, ...] = ()
    removed: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.added) + len(self.removed)

    def apply(self, pieces: dict[str, Piece]) -> None:
        """Makes the changes to pieces by name."""
        for name in self.removed:
            pieces.pop(name, None)
        pieces.update((piece.name, piece) for piece in self.added)


@dataclass(frozen=True)
class StoredFile:
    """One file of a run: its pieces in order, without a gap; at least one."""

    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return self.pieces[-1].end

    @property
    def modified_ns(self) -> int:
        """The time of modification on the driver's disk, nanoseconds since 1970."""
        return self.pieces[-1].modified_ns


def pieces_of(files: Mapping[str, StoredFile]) -> dict[str, Piece]:
    """The pieces of files, by name."""
    return {piece.name: piece for file in files.values() for piece in file.pieces}


def files_of(pieces: Iterable[Piece]) -> dict[str, StoredFile]:
    """The files of pieces, by key. Raises ValueError for a file of which bytes are missing or there twice."""
    found = dict[str, list[Piece]]()
    for piece in sorted(pieces, key=lambda piece: piece.start):
        there = found.setdefault(piece.key, [])
        if piece.start != (there[-1].end if there else 0):
            raise ValueError(f"the pieces of {piece.key!r} do not follow each other")
        there.append(piece)
    return {key: StoredFile(tuple(there)) for key, there in found.items()}


def difference(before: Mapping[str, Piece], after: Mapping[str, Piece]) -> Changes:
    """The changes that lead from some pieces to others, both by name."""
    added = tuple(piece for name, piece in after.items() if name not in before)
    return Changes(added=added, removed=tuple(name for name in before if name not in after))


def merge(levels: Sequence[int], fan: int) -> tuple[int, int]:
    """For an addition after parts of these levels: the number of parts that stay as they are, and the level of the part
    that replaces the others and holds the addition."""
    stay, level = len(levels), 0
    while stay >= fan - 1 and all(other == level for other in levels[stay - fan + 1 : stay]):
        stay, level = stay - fan + 1, level + 1
    return stay, level


def object_name(key: str, generation: int, sequence: int) -> str:
    """The key in the store of an upload of a run's file; the suffix stays, so that other programs know the format."""
    return f"{FILES}/{_numbered(PurePosixPath(key), generation, sequence)}"


def page_name(generation: int, sequence: int) -> str:
    """The key in the store of a page."""
    return f"{PAGES}/{_numbered(PurePosixPath('page.json'), generation, sequence)}"


def _numbered(path: PurePosixPath, generation: int, sequence: int) -> PurePosixPath:
    return path.with_name(f"{path.stem}.g{generation}-{sequence}{path.suffix}")


def generation_of(name: str) -> int:
    """The generation of the driver that has sent a file of the store; 0 for a name of another form."""
    found = _GENERATION.findall(PurePosixPath(name).name)
    return int(found[-1]) if found else 0
