"""Ships folders of the driver's disk to the hosts that need them, through Ray's object store.

The driver offers a folder: `offer` hashes its files and puts them into the object store in chunks, which Ray spills to
the driver's disk when memory is short. An actor that gets the offer calls `local`, which returns a path on its host:

1. the folder's own path, if the actor runs on the driver's node, or if the same path holds the same content there;
2. else a copy in the node's cache, `CACHE/folders/NAME-DIGEST`; one process of a node makes it, the others wait.

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
    content_digest,
    copied,
    holds,
    listing,
    read_chunk,
)
from squelch.envs.retrieval.index import cache_folder

CHUNK_TIMEOUT_S = 60.0
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


def offer(path: Path, patterns: Iterable[str] = EVERYTHING, ship: bool = True) -> Folder:
    """The folder, as an actor on any node can use it. With `ship` false nothing is read, and it stays on this node."""
    path, (node, host), patterns = path.resolve(), own_node(), tuple(patterns)
    in_cache = path.parent == cache_folder().resolve()
    entries = listing(path, patterns) if ship else ()
    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        chunks = tuple(pool.map(lambda entry: _put(path / entry.name, entry), entries))
    return Folder(str(path), node, host, entries, chunks, in_cache, patterns)


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


def _copy_of(folder: Folder) -> Path:
    return cache_folder() / "folders" / f"{Path(folder.path).name}-{content_digest(folder.entries)[:16]}"


def forget(folder: Folder) -> None:
    """Removes this node's copy of the folder, if there is one; no process of the node may need it any more."""
    shutil.rmtree(_copy_of(folder), ignore_errors=True)


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
    try:
        return ray.get(folder.chunks[index][number], timeout=CHUNK_TIMEOUT_S)
    except GetTimeoutError as error:
        raise ValueError(
            f"{folder.entries[index].name} of {folder.path} did not arrive from {folder.host} within "
            f"{CHUNK_TIMEOUT_S:g} s"
        ) from error
    except RayError as error:
        raise ValueError(
            f"{folder.entries[index].name} of {folder.path} was lost with {folder.host}: {error}"
        ) from error
