"""The schema version of a run's files, and its check.

A Parquet file states the version in its schema's metadata under `squelch.schema`; `summary.json` states it as `schema`.
A file that states none, as another trainer may write it, is read as the present schema. Schema 2 adds nullable
columns to schema 1: `segments`, without which each trajectory is one segment, `label`, without which the run has one
environment, and `untrained` and `failure_rewarded`, without which there is nothing of the kind. Files of schema 1 are
read alike.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from squelch.kit.untrusted.files import Unreadable, brief

VERSION = 2
READ = (1, 2)
"""The versions that are read."""
VERSION_KEY = "squelch.schema"
READ_BY = "03d7dc21"
"""The last commit of Squelch that reads files from before schema 1."""
_NUMBER = re.compile(r"[0-9]{1,9}")


def version_of(metadata: Mapping[bytes, bytes] | None) -> int | str | None:
    """The version that the metadata of a Parquet schema states, of whatever form; None if it states none."""
    stated = (metadata or {}).get(VERSION_KEY.encode())
    if stated is None:
        return None
    text = stated.decode(errors="replace")
    return int(text) if _NUMBER.fullmatch(text) else text


def check_version(stated: object, name: str) -> None:
    """Checks the version that the file `name` states, or None.

    Raises:
        Unreadable: it is none of `READ`; the message names the file and says what to do.
    """
    if stated in (None, *READ):
        return
    if not isinstance(stated, int) or stated < 0:
        raise Unreadable(f"{name} states the schema version {brief(stated)}; a version is a whole number from 1 on")
    remedy = (
        f"Read it with commit {READ_BY} of Squelch."
        if stated < min(READ)
        else "Read it with the version of Squelch that wrote it, or with a newer one."
    )
    known = " and ".join(map(str, READ))
    raise Unreadable(f"{name} has schema {stated}, but this version of Squelch reads schema {known}. {remedy}")
