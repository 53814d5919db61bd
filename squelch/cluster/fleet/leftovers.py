"""What a killed run leaves on its machine beside files: processes of Ray, and semaphores. Ends what is surely dead and
this user's; runs on other machines, and those that live, are not touched."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

import psutil

from squelch.actors.process.preparation import SEMAPHORES

SHARED_MEMORY = Path("/dev/shm")
"""Where Linux keeps named semaphores: `sem.NAME`."""
_WAIT_S = 5.0
_TITLE = "ray::"
"""Beginning of the titles that Ray gives processes, in place of their command lines."""
_FILE = re.compile(r"/ray/(core|dashboard|_private|autoscaler)/")
"""A file of Ray's package, which its processes run."""


def end_processes(folder: Path) -> list[int]:
    """Kills Ray's processes of a cluster that has ended, as the caller knows; returns their ids. They are this user's,
    run a file of Ray, and name something below the cluster's folder; those with a title of their own, such as Ray's
    agents, have a log file open there. Whoever merely reads a log there lives."""
    inside = re.compile(rf"(^|=){re.escape(str(folder))}/")
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            own = process.uids().real == os.geteuid() and process.pid != os.getpid()
            if own and any(inside.search(word) for word in _rays_words(process)):
                process.kill()
                found.append(process)
    psutil.wait_procs(found, _WAIT_S)
    return [process.pid for process in found]


def _rays_words(process: psutil.Process) -> list[str]:
    """The command line of a process of Ray, or the open files of one with a title; empty for others."""
    words = process.cmdline()
    if words and words[0].startswith(_TITLE):
        return [file.path for file in process.open_files()]
    return words if any(_FILE.search(word) for word in words[:4]) else []


def remove_semaphores() -> list[str]:
    """Removes semaphores that actors of this user made (`actors.process.preparation`) and that no process maps any
    more; returns their names."""
    names = {path: inode for path in SHARED_MEMORY.glob(f"sem.{SEMAPHORES}-*") if (inode := _own(path)) is not None}
    mapped = _mapped() if names else set()
    dead = [path for path, inode in names.items() if inode not in mapped]
    for path in dead:
        path.unlink(missing_ok=True)
    return [path.name for path in dead]


def _own(path: Path) -> int | None:
    """The inode of a file of this user."""
    with suppress(FileNotFoundError):
        found = path.lstat()
        return found.st_ino if found.st_uid == os.geteuid() else None
    return None


def _mapped() -> set[int]:
    """The inodes of the files of shared memory that processes map; a semaphore is mapped under another name than it
    has."""
    found: set[int] = set()
    for process in psutil.process_iter():
        with suppress(OSError):
            lines = Path(f"/proc/{process.pid}/maps").read_text(errors="replace").splitlines()
            found |= {int(line.split()[4]) for line in lines if f" {SHARED_MEMORY}/" in line}
    return found
