"""Files that outlive a crash or a power cut. The one place that writes a file beside its place, syncs and renames it.

Imports the standard library only. Every function raises OSError where the disk refuses.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def sync(path: Path) -> None:
    """A file's bytes, or a folder's names, are on the disk when this returns."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file that takes its place only once it is written and synced; on any error the file there stays as it was.

    The folder is made where it is missing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        with open(partial, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        sync(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """Writes a text file (UTF-8) as `whole_file` does."""
    with whole_file(path) as file:
        file.write(text.encode())
