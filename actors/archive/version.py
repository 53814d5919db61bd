"""The schema version of a run's files, and its check.

A Parquet file states the version in its schema's metadata under `squelch.schema`; `summary.json` states it as `schema`.
A file that states none has version 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from squelch.envs.untrusted.files import brief

VERSION = 1
VERSION_KEY = "squelch.schema"
_NUMBER = re.compile(r"[0-9]{1,9}")


def version_of(metadata: Mapping[bytes, bytes] | None, name: str) -> int:
    """The version in the metadata of a Parquet schema. Raises ValueError as `checked_version` does."""
    stated = (metadata or {}).get(VERSION_KEY.encode(), b"0").decode(errors="replace")
    return checked_version(int(stated) if _NUMBER.fullmatch(stated) else stated, name)


def checked_version(stated: object, name: str) -> int:
    """The version `stated` in the file `name`.

    Raises:
        ValueError: the version is newer than `VERSION`, or not a version; the message names the file and says what to
            do.
    """
    if not isinstance(stated, int) or stated < 0:
        raise ValueError(f"{name} states the schema version {brief(stated)}; a version is a whole number from 0 on")
    if stated > VERSION:
        raise ValueError(
            f"{name} has schema {brief(stated)}, but this version of Squelch reads schemas up to {VERSION}. Read it "
            "with the version of Squelch that wrote it, or with a newer one."
        )
    return stated
