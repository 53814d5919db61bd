"""Ships folders of the driver's disk to the hosts that need them, through Ray's object store.

The driver offers a folder: `offer` hashes its files and puts them into the object store in chunks, which Ray spills to
the driver's disk when memory is short. An actor that gets the offer calls `local`, which returns a path on its host:

1. the folder's own path, if the actor runs on the driver's node, or if the same path holds the same content there;
2. else a copy in the node's cache, `CACHE/folders/NAME-DIGEST`; one process of a node makes it, the others wait.

Of a checkpoint an actor needs only some files, but the headers of all. `outline` returns a copy whose safetensors files
are headers with a hole behind them, and a function that fetches one whole when it is needed.

A folder that was not offered, because the cluster had a single node, is refused by name on any other node.

| waits for | unblocked by | on time-out |
|---|---|---|
| a chunk | the object store; the driver owns the chunks | ValueError naming file and host, `CHUNK_TIMEOUT_S` |
| another process's copy | that process | ValueError naming the process, `actors.process.folders.COPY_WAIT_S` |
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from squelch.actors.process.folders import (
    EVERYTHING,
    FILES_AT_ONCE,
    Entry,
    Whole,
    as_it_is,
    content_digest,
    copied,
    holds,
    listing,
    read_chunk,
)
from squelch.kit.base.cache import cache_folder
from squelch.kit.models.tensor_files import head

CHUNK_TIMEOUT_S = 60.0
SAFETENSORS = ".safetensors"
MODEL_FILES = ("*.json", "*.jinja", "*.model", "*.safetensors", "*.txt")
"""The files of a Hugging Face folder that Squelch reads: no pickles, and no subfolders."""


@dataclass(frozen=True)
class Folder:
    """A folder of the driver's disk."""

    path: str
    node: str
    """Ray's id of the driver's node."""
    host: str
    """The driver's address, for messages."""
    entries: tuple[Entry, ...] = ()
    chunks: tuple[tuple[Any, ...], ...] = ()
    """References to the chunks of each entry; empty if the folder was not offered."""
    in_cache: bool = False
    """Whether the folder lies in the driver's cache folder."""
    patterns: tuple[str, ...] = ()
    """Which of its files were offered."""
    heads: Any = None
    """Reference to the headers of its safetensors files, by name, if it was offered for `outline`."""


def offer(path: Path, patterns: Iterable[str] = EVERYTHING, ship: bool = True, outlined: bool = False) -> Folder:
    """The folder, as an actor on any node can use it. With `ship` false nothing is read, and it stays on this node.
    `outlined`: for `outline`."""
    path, (node, host), patterns = path.resolve(), own_node(), tuple(patterns)
    in_cache = path.parent == cache_folder().resolve()
    entries = listing(path, patterns) if ship else ()
    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        chunks = tuple(pool.map(lambda entry: _put(path / entry.name, entry), entries))
    names = [entry.name for entry in entries if entry.name.endswith(SAFETENSORS)] if outlined else []
    heads = ray.put({name: head(path / name) for name in names}) if names else None
    return Folder(str(path), node, host, entries, chunks, in_cache, patterns, heads)


def _put(file: Path, entry: Entry) -> tuple[Any, ...]:
    return tuple(ray.put(read_chunk(file, number)) for number in range(entry.num_chunks))


def own_node() -> tuple[str, str]:
    """(Ray's id, address) of this process's node."""
    return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()


def local(folder: Folder | Path | str) -> Path:
    """The folder's path on this host; a copy is made if necessary. A plain path is returned as it is.

    Raises:
        ValueError: the folder is not on this host and was not offered, or its copy failed.
    """
    if not isinstance(folder, Folder):
        return Path(folder)
    path = Path(folder.path)
    if own_node()[0] == folder.node or (folder.entries and holds(path, folder.entries, folder.patterns)):
        return path
    return copy_at(folder, _copy_of(folder))


def outline(folder: Folder | Path | str) -> tuple[Path, Whole]:
    """As `local`, but of a copy only the files that are no safetensors are whole. The function takes the path of one of
    the others to that of the whole file, which this node fetches once. Errors of both as of `local`."""
    if not isinstance(folder, Folder) or own_node()[0] == folder.node or folder.heads is None:
        return local(folder), as_it_is
    copy, parts = _outline_of(folder)
    heads = _object(folder, folder.heads, "the headers")
    copied(copy, folder.entries, lambda index, number: _chunk(folder, index, number), heads)
    numbers = {copy / entry.name: index for index, entry in enumerate(folder.entries)}

    def whole(path: Path) -> Path:
        index = numbers[path]
        entry = folder.entries[index]
        part = copied(parts / f"{index:06d}", (entry,), lambda _, number: _chunk(folder, index, number))
        return part / entry.name

    return copy, whole


def _copy_of(folder: Folder) -> Path:
    return cache_folder() / "folders" / f"{Path(folder.path).name}-{content_digest(folder.entries)[:16]}"


def _outline_of(folder: Folder) -> tuple[Path, Path]:
    """The outline, and the folder of its whole files."""
    copy = _copy_of(folder)
    return copy.with_name(f"{copy.name}.outline"), copy.with_name(f"{copy.name}.parts")


def forget(folder: Folder) -> None:
    """Removes this node's copy of the folder, if there is one; no process of the node may need it any more."""
    for copy in (_copy_of(folder), *_outline_of(folder)):
        shutil.rmtree(copy, ignore_errors=True)


def copy_at(folder: Folder, target: Path) -> Path:
    """As `local`, but the copy is `target`, which is taken for the same content if it exists."""
    if own_node()[0] == folder.node:
        return Path(folder.path)
    if not folder.entries:
        raise ValueError(
            f"{folder.path} is on {folder.host} only, and this actor runs on {own_node()[1]}, which joined the cluster "
            "after the run started: start the run again, or put the folder on every host"
        )
    return copied(target, folder.entries, lambda index, number: _chunk(folder, index, number))


def _chunk(folder: Folder, index: int, number: int) -> bytes:
    return _object(folder, folder.chunks[index][number], folder.entries[index].name)


def _object(folder: Folder, reference: Any, what: str) -> Any:
    """What the driver has put into the object store; `what` it is, for a message."""
    try:
        return ray.get(reference, timeout=CHUNK_TIMEOUT_S)
    except GetTimeoutError as error:
        raise ValueError(
            f"{what} of {folder.path} did not arrive from {folder.host} within {CHUNK_TIMEOUT_S:g} s"
        ) from error
    except RayError as error:
        raise ValueError(f"{what} of {folder.path} was lost with {folder.host}: {error}") from error
