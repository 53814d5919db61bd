"""Durable writes: a file survives a crash or a power cut whole. No other module writes, syncs and renames files.

Every function passes on the OSError of a failed write. A folder, pipe, device or socket in the place of a file is
refused, never replaced.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from squelch.kit.untrusted.files import require_output

_PARTIAL, _REPLACED = ".partial", ".replaced"


def sync(path: Path) -> None:
    """Waits until a file's bytes, or a folder's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def partial_path(path: Path) -> Path:
    """The temporary path at which a file or folder `path` is written, before it is renamed."""
    return path.with_name(f".{path.name}{_PARTIAL}")


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write that replaces `path` only once it is written and synced; after any error `path` is unchanged.

    Missing folders are created. Raises WrongKind if `path` is something else than a regular file.
    """
    require_output(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_path(path)
    partial.unlink(missing_ok=True)  # of a killed process, or a link that someone has put there
    try:
        with open(partial, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        sync(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def put_in_place(aside: Path, target: Path) -> None:
    """Gives a complete folder, made at `aside` beside it, its final name, durably. An older folder of that name is
    replaced, under a name of half-written ones until it is deleted. A process killed between the two renames leaves no
    folder `target`; `restore_names` gives the older one its name back. (NFS cannot exchange two names.)"""
    for path in (*aside.rglob("*"), aside):
        sync(path)
    replaced = partial_path(target.with_name(f"{target.name}{_REPLACED}"))
    _restore_name(replaced, target)
    shutil.rmtree(replaced, ignore_errors=True)  # of a killed process
    if target.exists():
        target.rename(replaced)
    aside.rename(target)
    sync(target.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def restore_names(folder: Path) -> None:
    """Gives the folders in `folder` their names back that a killed process was about to replace. Only for the process
    that alone writes there."""
    for replaced in folder.glob(f".*{_REPLACED}{_PARTIAL}"):
        _restore_name(replaced, folder / replaced.name[1:].removesuffix(f"{_REPLACED}{_PARTIAL}"))


def _restore_name(replaced: Path, target: Path) -> None:
    if replaced.is_dir() and not target.exists():
        replaced.rename(target)
        sync(target.parent)


def write_whole(path: Path, text: str) -> None:
    """Writes a text file (UTF-8) as `whole_file` does."""
    with whole_file(path) as file:
        file.write(text.encode())
