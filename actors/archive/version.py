"""The version of what a run leaves behind, and how a file's version is checked. Standard library only.

A Parquet file states it in its schema's metadata under `squelch.schema`; `summary.json` states it as `schema`. A file
that states none is of version 0.
"""

from __future__ import annotations

from collections.abc import Mapping

VERSION = 1
VERSION_KEY = "squelch.schema"


def version_of(metadata: Mapping[bytes, bytes] | None, name: str) -> int:
    """The version that the metadata of a Parquet schema states. ValueError as of `checked_version`."""
    stated = (metadata or {}).get(VERSION_KEY.encode(), b"0").decode()
    return checked_version(int(stated) if stated.isdecimal() else stated, name)


def checked_version(stated: object, name: str) -> int:
    """The version that a file states.

    Raises:
        ValueError: it is newer than this one, or no version; the text names the file and says what to do.
    """
    if not isinstance(stated, int) or stated < 0:
        raise ValueError(f"{name} states the schema version {stated!r}; a version is a whole number from 0 on")
    if stated > VERSION:
        raise ValueError(
            f"{name} is of schema {stated}, and this version of Squelch reads schemas up to {VERSION}. Read it with "
            "the version of Squelch that wrote it, or with a newer one."
        )
    return stated
