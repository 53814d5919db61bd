"""Bounds the memory that the reading of hostile input may take, for decoders that cannot be bounded otherwise."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from squelch.kit.untrusted.files import MIB, Unreadable

MOST_BYTES = 1024 * MIB
_DATA_FIELD = 5
"""Index of the field `data` in /proc/self/statm: pages of private writable memory."""


@contextmanager
def memory_of_at_most(where: str, num_bytes: int = MOST_BYTES) -> Iterator[None]:
    """Within the block the process may take `num_bytes` more than it has; beyond that, Unreadable names `where`.

    The kernel fails the allocation, and Python raises MemoryError. The limit holds for every thread of the process, so
    it is for a command's own process while it reads, never for an actor, and not for what Arrow decodes
    (`kit.untrusted.decoder_process`).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    pages = int(Path("/proc/self/statm").read_text().split()[_DATA_FIELD])
    wanted = pages * resource.getpagesize() + num_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (wanted if soft == resource.RLIM_INFINITY else min(soft, wanted), hard))
    try:
        yield
    except MemoryError as error:
        raise Unreadable(
            f"{where}: reading takes more than {num_bytes // MIB} MiB of memory; give less data"
        ) from error
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
