"""Bounds the total memory of a program's processes by a control group, if this process may create one.

Versions 1 and 2 of control groups are supported. If this process may not create a group (the usual case for an
unprivileged user), the reason is recorded and the program is bounded by address space x processes instead.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
from pathlib import Path

log = logging.getLogger(__name__)
MOUNT = Path("/sys/fs/cgroup")
PREFIX = "squelch-sandbox"
_NUMBERS = itertools.count()  # numbers the groups of all pools of this process


class MemoryGroups:
    """Groups for the programs of this process; each group serves one program at a time and is then reused."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[Path] = []
        self._made: list[Path] = []
        self._parent, self._limit_file, self.reason = own_group()
        if self._parent is not None:
            _remove_stale(self._parent)
            try:
                self.release(self._make())
            except OSError as error:
                self._parent, self.reason = None, f"no control group can be made: {error.strerror}"

    @property
    def available(self) -> bool:
        """Whether groups bound the memory of programs."""
        return self._parent is not None

    def acquire(self, pid: int, limit_bytes: int) -> Path | None:
        """Put the process, and all processes that it will start, into a group with that limit. Raises RuntimeError if
        this fails."""
        if self._parent is None:
            return None
        try:
            with self._lock:
                group = self._free.pop() if self._free else self._make()
            (group / self._limit_file).write_text(str(limit_bytes))
            (group / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            raise RuntimeError(f"sandbox: process {pid} cannot enter a control group: {error}") from error
        return group

    def release(self, group: Path | None) -> None:
        """Make the group available again once its processes are gone."""
        if group is not None:
            with self._lock:
                self._free.append(group)

    def close(self) -> None:
        """Remove all groups; a group with a process that has not ended yet remains until a later process removes it."""
        for group in self._made:
            _remove(group)

    def _make(self) -> Path:
        assert self._parent is not None
        group = self._parent / f"{PREFIX}-{os.getpid()}-{next(_NUMBERS)}"
        group.mkdir(exist_ok=True)
        self._made.append(group)
        if not (group / self._limit_file).exists():
            raise OSError(0, f"{self._limit_file} is missing in {group}, the memory controller is not delegated")
        return group


def own_group() -> tuple[Path | None, str, str]:
    """(this process's group of the memory controller, the name of the limit's file, the reason if there is none)."""
    try:
        lines = Path("/proc/self/cgroup").read_text().split()
    except OSError as error:
        return None, "", f"/proc/self/cgroup: {error.strerror}"
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return _below(MOUNT / "memory", path), "memory.limit_in_bytes", ""
    for line in lines:
        if line.startswith("0::") and (MOUNT / "cgroup.controllers").exists():
            return _below(MOUNT, line[3:]), "memory.max", ""
    return None, "", "no control group hierarchy with a memory controller is mounted"


def _below(mount: Path, path: str) -> Path:
    own = mount / path.lstrip("/")
    return own if own.is_dir() else mount


def _remove(group: Path) -> None:
    try:
        group.rmdir()
    except OSError as error:
        log.debug("%s stays for now: %s", group, error)


def _remove_stale(parent: Path) -> None:
    for group in parent.glob(f"{PREFIX}-*"):
        pid = group.name.removeprefix(f"{PREFIX}-").partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            _remove(group)
