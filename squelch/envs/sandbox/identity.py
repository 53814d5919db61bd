"""The user that programs run as.

Programs never run as root of the initial user namespace: to root, the limit on the number of processes does not apply,
and the files of the devices that every sandbox shares belong to root. So if this process is that root, programs run as
`nobody`; if they cannot, no program runs. Everyone else runs programs as themselves, root of a container with its own
user namespace as `nobody` where the container has that user.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NOBODY = 65534
OWNED_BY_ROOT = Path("/proc/sys/kernel/ostype")
"""A file that belongs to root of the initial user namespace in every user namespace."""


@dataclass(frozen=True)
class Identity:
    """A user. `uid` is None for the user of this process."""

    uid: int | None

    def popen(self) -> dict[str, Any]:
        """The arguments of `subprocess.Popen` that start a process as this user."""
        return {} if self.uid is None else {"user": self.uid, "group": self.uid, "extra_groups": []}

    def __str__(self) -> str:
        return f"this user ({os.geteuid()})" if self.uid is None else f"nobody ({self.uid})"


THIS_USER = Identity(None)


def identities() -> list[Identity]:
    """The users that programs may run as, best first."""
    if is_host_root():
        return [Identity(NOBODY)]
    return [Identity(NOBODY), THIS_USER] if os.geteuid() == 0 else [THIS_USER]


def is_host_root() -> bool:
    """Whether this process acts as root of the initial user namespace, under whatever number."""
    own = os.geteuid()
    try:
        root_here = OWNED_BY_ROOT.stat().st_uid
        outside = outside_id(own, Path("/proc/self/uid_map").read_text())
    except OSError:  # without /proc, root is taken for the worst
        return own == 0
    return outside == 0 or (root_here == own and own != NOBODY)  # NOBODY also stands for users that are not mapped


def outside_id(uid: int, uid_map: str) -> int | None:
    """The number that `uid` has in the parent user namespace by a text like /proc/self/uid_map; None if it is not
    mapped."""
    for line in uid_map.splitlines():
        inside, outside, count = map(int, line.split())
        if inside <= uid < inside + count:
            return outside + uid - inside
    return None
