"""A lock file that one process or thread of a host holds at a time.

| waits for | unblocked by | on time-out |
|---|---|---|
| the lock's holder | the end of its work; the kernel frees the lock of a holder that dies | ValueError that names it |
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from squelch.kit.untrusted.files import open_own

_POLL_S = 0.1
_MOST = 200
"""Bytes of the holder's words that are shown."""


@contextmanager
def held(path: Path, work: str, wait_s: float) -> Iterator[None]:
    """Holds the lock file `path` for the block. `work`: what holders do, for the message (`building this index`).

    Raises ValueError, naming the holder, if the lock is not free within `wait_s`.
    """
    with open_own(path) as file:
        end = time.monotonic() + wait_s
        while not _try_lock(file.fileno()):
            if time.monotonic() > end:
                file.seek(0)
                holder = file.read(_MOST).decode(errors="replace").strip() or "unknown"
                raise ValueError(f"{path}: process {holder} has been {work} for {wait_s:g} s")
            time.sleep(_POLL_S)
        file.truncate(0)
        file.write(str(os.getpid()).encode())
        yield


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
