"""The size that Ray's object store needs for a run. Weights that do not fit are spilled to disk, which costs more time
than training on a laptop; a run that would spill them is refused instead.

The store holds versions of the weights (the one that rollout workers load, the one before it until they have, and the
one that the scorer still works with) and the groups of the steps under way.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from squelch.kit.base.errors import UserError

MIB = 2**20
VERSIONS = 3
GROUPS_MIB = 64
"""Allowance for groups' tables and everything else."""
LOCAL_MIB = 256
"""Least size on this machine."""
SHARED_MEMORY = Path("/dev/shm")


def needed_mib(weights: int) -> int:
    """MiB for a run that publishes `weights` bytes a version."""
    return math.ceil(VERSIONS * weights / MIB) + GROUPS_MIB


def local_mib(weights: int, chosen: int | None) -> int:
    """MiB of the store of a cluster on this machine; `chosen`: `cluster.object_store_mib`.

    Raises:
        UserError: what was chosen, or the machine's shared memory, does not hold the weights.
    """
    need = needed_mib(weights)
    if chosen is not None and chosen < need:
        raise UserError(
            f"cluster.object_store_mib={chosen} does not hold {_versions(weights)}; set at least {need}, or leave the "
            "key out"
        )
    size = chosen or max(LOCAL_MIB, need)
    free = shutil.disk_usage(SHARED_MEMORY).free // MIB if SHARED_MEMORY.is_dir() else size
    if free < need:
        raise UserError(
            f"{SHARED_MEMORY} has {free} MiB free and Ray's object store needs {need} MiB for {_versions(weights)}; "
            "enlarge it (docker run --shm-size, or mount -o remount,size=...)"
        )
    return min(size, free)


def check_joined(weights: int, nodes: Iterable[Mapping[str, Any]]) -> None:
    """Raises UserError if no living node of a joined cluster has an object store that holds the weights. `nodes`: as
    `ray.nodes()`."""
    sizes = [node["Resources"].get("object_store_memory", 0.0) / MIB for node in nodes if node["Alive"]]
    need, largest = needed_mib(weights), max(sizes, default=0.0)
    if largest < need:
        raise UserError(
            f"the largest object store of the cluster has {largest:.0f} MiB and the run needs {need} MiB for "
            f"{_versions(weights)}: start Ray with --object-store-memory={need * MIB}"
        )


def _versions(weights: int) -> str:
    return f"{VERSIONS} versions of the weights of {math.ceil(weights / MIB)} MiB each and the groups"
