"""The schema version of a run's files, and its check. Standard library only.

A Parquet file states the version in its schema's metadata under `squelch.schema`; `summary.json` states it as `schema`.
A file that states none has version 0.
"""

from __future__ import annotations

from collections.abc import Mapping

VERSION = 1
VERSION_KEY = "squelch.schema"


def version_of(metadata: Mapping[bytes, bytes] | None, name: str) -> int:
    """The version in the metadata of a Parquet schema. Raises ValueError as `checked_version` does."""
    stated = (metadata or {}).get(VERSION_KEY.encode(), b"0").decode()
    return checked_version(int(stated) if stated.isdecimal() else stated, name)


def checked_version(stated: object, name: str) -> int:
    """The version `stated` in the file `name`.

    Raises:
        ValueError: the version is newer than `VERSION`, or not a version; the message names the file and says what to
            do.
    """
    if not isinstance(stated, int) or stated < 0:
        raise ValueError(f"{name} states the schema version {stated!r}; a version is a whole number from 0 on")
    if stated > VERSION:
        raise ValueError(
            f"{name} has schema {stated}, but this version of Squelch reads schemas up to {VERSION}. Read it with "
            "the version of Squelch that wrote it, or with a newer one."
        )
    return stated
