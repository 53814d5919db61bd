"""Folders that learner ranks write for the driver, where a rank does not see the driver's disk.

    rank on the driver's disk        writes to the gathering folder, beside the final one
    rank on another disk             writes to a staging folder in its node's cache; the driver fetches it in chunks
    driver                           verifies, merges, and renames the gathering folder once it holds everything

A rank sees the driver's disk if it finds a file there that the driver has just written, so a shared file system is used
directly. The mechanism does not depend on what the ranks write: a method that writes the folder `path` leaves files in
`path` or, where rank 0 has not sealed it, in `partial_path(path)`; both are fetched.

| the driver waits for | on time-out |
|---|---|
| each rank's look at the driver's disk, its staging folder | TimeoutError naming the rank, `LOOK_S` |
| the method that writes; each list, each chunk of a staging folder | TimeoutError naming the rank, the write's bound |

Invariants: the folder of the final name is complete or absent. A staging folder is removed in any case; that of a
killed rank is removed by the next write of the same run on its node. This module does not import Ray: `Ranks`, the
learner's client, makes the calls.
"""

import hashlib
import shutil
import socket
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from squelch.actors.process.folders import Entry, listing, read_chunk, write_files
from squelch.kit.base.cache import cache_folder
from squelch.kit.base.disk import partial_path, put_in_place

LOOK_S = 20.0
DESTINATION = 16
"""Characters of a staging folder's name that say where its files go; one driver at a time writes there."""


class Ranks(Protocol):
    """Calls to learner ranks. `each` and `ask` raise TimeoutError or RuntimeError, naming the ranks, and pass on
    ValueErrors."""

    def each(self, method: str, timeout_s: float, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Calls a method of every rank, each with its own arguments."""

    def ask(self, rank: int, method: str, timeout_s: float, *arguments: Any) -> Any:
        """Calls a method of one rank."""

    def notify(self, method: str, *arguments: Any) -> None:
        """Calls a method of every rank; waits briefly, and passes over ranks that do not answer."""


class Staging:
    """The staging folder of one write on this node; the ranks of a node share it."""

    def __init__(self, token: str) -> None:
        self.folder = cache_folder() / "staging" / token
        self.path = self.folder / "written"
        """The path that ranks write to."""

    def create(self) -> str:
        """Creates the folder; returns the path to write to. ValueError if the cache cannot be written."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for left in set(self.folder.parent.glob(f"{self.folder.name[:DESTINATION]}-*")) - {self.folder}:
                shutil.rmtree(left, ignore_errors=True)
        except OSError as error:
            raise ValueError(
                f"{self.folder} cannot be written ({error}), and this rank does not see the run folder's disk; name "
                "another cache folder with the variable SQUELCH_CACHE where Ray starts"
            ) from error
        return str(self.path)

    def entries(self) -> tuple[Entry, ...]:
        """The files that the ranks of this node have written, sealed or not; names are relative to the folder that they
        write."""
        return tuple(entry for root in self._roots() for entry in listing(root))

    def read(self, name: str, number: int) -> bytes:
        """A chunk of an entry."""
        return read_chunk(next(root / name for root in self._roots() if (root / name).is_file()), number)

    def remove(self) -> None:
        """Removes the folder, if it exists."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _roots(self) -> list[Path]:
        return [root for root in (self.path, partial_path(self.path)) if root.is_dir()]


def sees(folder: Path, token: str) -> bool:
    """Whether the folder on this host is the one in which the driver left the mark `token`."""
    return _mark(folder, token).is_file()


def _mark(folder: Path, token: str) -> Path:
    return folder / f".seen-{token}"


def write(ranks: Ranks, nodes: Sequence[str], path: Path, method: str, timeout_s: float, *arguments: Any) -> list[Any]:
    """Calls a collective `method(path, *arguments)` that writes a folder; afterwards `path` is on the driver's disk.
    Returns the results by rank.

    Args:
        nodes: the node of each rank; one rank a node is asked for what the node has staged.

    Raises:
        ValueError: the folder cannot be written, here or there, or arrived damaged.
    """
    try:
        own = seen(ranks, len(nodes), path.parent)
        if all(own):
            return ranks.each(method, timeout_s, [(str(path), *arguments)] * len(nodes))
        asked = {node: rank for rank, node in enumerate(nodes) if not own[rank]}
        return _write_apart(ranks, own, list(asked.values()), path, method, timeout_s, arguments)
    except OSError as error:
        if isinstance(error, TimeoutError):  # a late rank, which the error names
            raise
        raise ValueError(f"{path} could not be written: {error}") from error


def seen(ranks: Ranks, count: int, folder: Path) -> list[bool]:
    """For each rank, whether it sees the driver's `folder`. OSError if the driver cannot leave a mark in it."""
    token = uuid.uuid4().hex
    folder.mkdir(parents=True, exist_ok=True)
    mark = _mark(folder, token)
    mark.touch()
    try:
        return ranks.each("sees", LOOK_S, [(str(folder), token)] * count)
    finally:
        mark.unlink()


def _write_apart(
    ranks: Ranks,
    own: Sequence[bool],
    asked: Sequence[int],
    path: Path,
    method: str,
    timeout_s: float,
    arguments: tuple[Any, ...],
) -> list[Any]:
    token = _token(path.parent)
    aside = path.with_name(f".{path.name}.{token[-8:]}.gathering.partial")
    try:
        staged = ranks.each("stage", LOOK_S, [(token,)] * len(own))
        paths = [str(aside) if seen else far for seen, far in zip(own, staged, strict=True)]
        results = ranks.each(method, timeout_s, [(each, *arguments) for each in paths])
        for rank in asked:
            _fetch(ranks, rank, token, aside, timeout_s)
        _merge(partial_path(aside), aside)
        put_in_place(aside, path)
        return results
    finally:
        for folder in (aside, partial_path(aside)):
            shutil.rmtree(folder, ignore_errors=True)
        ranks.notify("unstage", token)


def _token(folder: Path) -> str:
    """A new name for a staging folder. Its first `DESTINATION` characters are the same for all writes to `folder`."""
    destination = f"{uuid.getnode()} {socket.gethostname()} {folder.resolve()}"
    return f"{hashlib.sha256(destination.encode()).hexdigest()[:DESTINATION]}-{uuid.uuid4().hex}"


def _fetch(ranks: Ranks, rank: int, token: str, into: Path, timeout_s: float) -> None:
    entries: tuple[Entry, ...] = ranks.ask(rank, "staged", timeout_s, token)

    def chunk(index: int, number: int) -> bytes:
        return ranks.ask(rank, "read_staged", timeout_s, token, entries[index].name, number)

    write_files(into, entries, chunk)


def _merge(source: Path, target: Path) -> None:
    """Moves the files of one folder into another."""
    for file in [path for path in source.rglob("*") if path.is_file()]:
        place = target / file.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        file.replace(place)
