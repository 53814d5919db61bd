"""What it takes for a file to outlive a power cut. Imports nothing but the standard library."""

import os
from pathlib import Path


def sync(path: Path) -> None:
    """A file's bytes, or a folder's names, are on the disk when this returns; OSError when they cannot be."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
