"""The memory that this process may still take: what the host has left, or less where a control group limits it.

A container sees the memory of its whole host. What it may use is the limit of its control group and of the groups above
it; a process that takes more is killed without a word. Pages of files that were read and are not in use count as free,
as the kernel gives them back.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil

from squelch.envs.sandbox.cgroup import MOUNT, own_group

FILES = {
    "memory.max": ("memory.current", "inactive_file"),
    "memory.limit_in_bytes": ("memory.usage_in_bytes", "total_inactive_file"),
}
"""Names of the limit's file in cgroup versions 2 and 1; for each the file of the memory in use, and the entry of
`memory.stat` that counts reclaimable pages."""


def free_memory() -> int:
    """Bytes."""
    group, limit_file, _ = own_group()
    left = [] if group is None else rooms(group, limit_file)
    return max(0, min([psutil.virtual_memory().available, *left]))


def rooms(group: Path, limit_file: str) -> Iterator[int]:
    """Bytes that the limits of the group and of those above it leave; groups without a limit are left out."""
    used_file, given_back = FILES[limit_file]
    for one in (group, *group.parents):
        if not one.is_relative_to(MOUNT):
            return
        try:
            limit = (one / limit_file).read_text().strip()
            used = int((one / used_file).read_text())
            stat = dict(line.split() for line in (one / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):  # a group without the controller, as the root of version 2
            continue
        if limit != "max":
            yield int(limit) - used + int(stat.get(given_back, 0))
