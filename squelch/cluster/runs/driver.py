"""One driver to a run folder: a second would write the same archive and checkpoints, and lose what the first writes.

The lock (`flock` on the file `.driver`) ends with the process, however that ends. It also holds between hosts where the
file system passes locks on, as NFS 4 does. A run with a `store` has a lease there besides (`runs.in_store.lease`).

Readers of a run test the lock (`is_driven`) by holding it shared for an instant. A driver that starts at that instant
tries again, for at most `ATTEMPTS * PAUSE_S` seconds.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path

from squelch.kit.base.errors import UserError

FILE = ".driver"
_MOST = 200
"""Bytes of the holder's words that are shown."""
ATTEMPTS, PAUSE_S = 10, 0.02
"""How often a driver tries to get the lock, and the seconds between two attempts."""


def is_driven(folder: Path) -> bool | None:
    """Whether a process drives the run of this folder at this moment. Writes nothing and does not wait.

    None if that cannot be judged: there is no lock file, the file cannot be read, the
    file system has no locks, or the last driver was on another host, whose locks may not be visible here.
    """
    path = folder / FILE
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return None
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            holder = file.read(_MOST).decode(errors="replace")
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False if holder.partition(" on ")[2].strip() == socket.gethostname() else None


def name() -> str:
    """This process as the holder of a folder's lock."""
    return f"process {os.getpid()} on {socket.gethostname()}"


def named(folder: Path) -> str | None:
    """The process that drives the run of this folder, or was the last to drive it; None if that is not known."""
    try:
        with open(os.open(folder / FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            return file.read(_MOST).decode(errors="replace").strip()
    except OSError:
        return None


class Driver:
    """This process as the driver of a run folder. `hold` may be called again; `close` releases the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._descriptor: int | None = None

    def hold(self, say: Callable[[str], None]) -> None:
        """Takes the lock of the folder. If the file system has no locks, reports that and continues.

        Raises:
            UserError: another process drives the run.
        """
        if self._descriptor is not None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / FILE
        try:
            opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        except OSError as error:
            raise UserError(f"{path}: cannot be written, so the run cannot be made this process's ({error})") from error
        try:
            _lock(opened)
        except BlockingIOError:
            holder = os.pread(opened, _MOST, 0).decode(errors="replace").strip() or "another process"
            os.close(opened)
            todo = f"Follow it with `squelch watch {self.folder}`, or stop it first"
            raise UserError(f"{self.folder}: {holder} drives this run. {todo}") from None
        except OSError as error:
            say(f"{self.folder} cannot be locked ({error}): make sure that no other process drives this run")
        os.ftruncate(opened, 0)
        os.pwrite(opened, f"{name()}\n".encode(), 0)
        self._descriptor = opened

    def close(self) -> None:
        """Gives the folder free."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _lock(opened: int) -> None:
    """Takes the lock. Raises BlockingIOError if another process keeps it for longer than a reader's test takes."""
    for _ in range(ATTEMPTS - 1):
        try:
            return fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(PAUSE_S)
    return fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
