"""The kinds of files that a command reads, by their suffixes, in either case."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from squelch.cluster.errors import UserError
from squelch.envs.untrusted.files import is_file


def suffix_of(path: Path, read: Sequence[str], remedy: str) -> str:
    """The path's suffix in lower case; empty for a folder or a name without one. UserError with the remedy, which names
    the suffixes `read`, for a file of another."""
    suffix = path.suffix.lower()
    if suffix in ("", *read):
        return suffix
    if not is_file(path):
        return ""
    raise UserError(f"{path}: `{suffix}` files are not read here; {remedy}")
