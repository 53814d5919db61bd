"""Chooses a back end under conditions that this process first makes real, and tells what came of it.

    conditions.py CONDITION... : prints one JSON object

The conditions take effect in this order; all but `plain_user` need root.

- `no_cgroups`: /sys/fs/cgroup is unmounted in a mount namespace of this process's own.
- `closed_folders`: nobody else can enter /var/tmp and /run, in the same way.
- `root_by_another_number`: host's root appears as user 1000 in a user namespace.
- `plain_user`: this process gives up root for user 12345, for good.
- `container_root`: that user becomes root of a user namespace of its own.
- `no_user_namespaces`: a call filter refuses new namespaces, as the default one of Docker does.
- `unsafe`: the back end without isolation is allowed.
- `proved`: the doctor's hostile programs are run.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

from squelch.envs.sandbox import Pool, Question, backends, image
from squelch.envs.sandbox.limits import Limits
from squelch.envs.sandbox.proof import prove

USER = 12345
NEW_USER, NEW_MOUNTS = 0x10000000, 0x20000
MS_PRIVATE_BELOW, MNT_DETACH = (1 << 18) | 16384, 2
libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: object) -> None:
    """Calls a C function. Raises OSError if it fails."""
    if getattr(libc, name)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), name)


def own_mounts() -> None:
    """Gives this process a mount namespace of its own."""
    call("unshare", NEW_MOUNTS)
    call("mount", b"none", b"/", None, ctypes.c_ulong(MS_PRIVATE_BELOW), None)


def no_cgroups() -> None:
    """Unmounts the control groups."""
    own_mounts()
    call("umount2", b"/sys/fs/cgroup", MNT_DETACH)


def closed_folders() -> None:
    """Mounts an empty folder of root's over /var/tmp and /run."""
    own_mounts()
    for folder in (b"/var/tmp", b"/run"):
        call("mount", b"tmpfs", folder, b"tmpfs", ctypes.c_ulong(0), b"mode=0700")


def map_to(inside: int) -> None:
    """Enters a user namespace in which this user has that number."""
    uid, gid = os.geteuid(), os.getegid()
    call("unshare", NEW_USER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{inside} {uid} 1"), ("gid_map", f"{inside} {gid} 1")):
        Path(f"/proc/self/{name}").write_text(text)


def plain_user() -> None:
    """Becomes another user, and keeps access to its own entries in /proc. Root's image is given to that user
    beforehand: the interpreter that it is a copy of may be out of that user's reach."""
    place = Path(tempfile.gettempdir()) / "image"
    if not place.exists():
        shutil.copytree(image.build(Path("/tmp")).place, place)
        for path in (place, *place.rglob("*")):
            os.chown(path, USER, USER)
    image.build = lambda folder: image.Image(folder / "image")
    os.setgroups([])
    os.setgid(USER)
    os.setuid(USER)
    call("prctl", 4, 1, 0, 0, 0)


def no_user_namespaces() -> None:
    """Refuses unshare, setns and clone3, and clone with new namespaces."""
    refuse = 0x00050000 | errno.EPERM
    lines = [(0x20, 0, 0, 0)]
    for number in (272, 308):
        lines += [(0x15, 0, 1, number), (0x06, 0, 0, refuse)]
    lines += [(0x15, 0, 1, 435), (0x06, 0, 0, 0x00050000 | errno.ENOSYS)]
    lines += [(0x15, 0, 3, 56), (0x20, 0, 0, 16), (0x45, 0, 1, 0x7E020000), (0x06, 0, 0, refuse)]
    lines += [(0x06, 0, 0, 0x7FFF0000)]
    text = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in lines))
    call("prctl", 38, 1, 0, 0, 0)
    call("prctl", 22, 2, struct.pack("HxxxxxxP", len(lines), ctypes.addressof(text)), 0, 0)


CONDITIONS = {
    "no_cgroups": no_cgroups,
    "closed_folders": closed_folders,
    "root_by_another_number": lambda: map_to(1000),
    "plain_user": plain_user,
    "container_root": lambda: map_to(0),
    "no_user_namespaces": no_user_namespaces,
}


def outcome(unsafe: bool, proved: bool) -> dict[str, Any]:
    """The back end, and what a program in it is; or why there is none. `broken`: what hostile programs could do."""
    try:
        backend = backends.choose(unsafe)
    except ValueError as error:
        return {"refused": str(error)}
    pool = Pool(backend, warm=1)
    try:
        run = pool.run("import os\nprint(os.getuid())", [Question()], Limits(wall_s=10))[0]
        broken = list(prove(pool).broken) if proved else []
    finally:
        pool.close()
    return {
        "backend": backend.name,
        "identity": str(backend.command.identity),
        "image": str(backend.image.place.parent),
        "missing": list(pool.missing),
        "uid_inside": int(run.output),
        "broken": broken,
    }


def main(*names: str) -> None:
    """Makes the conditions and prints the outcome."""
    for name, make in CONDITIONS.items():
        if name in names:
            make()
    print(json.dumps(outcome("unsafe" in names, "proved" in names)))


if __name__ == "__main__":
    main(*sys.argv[1:])
