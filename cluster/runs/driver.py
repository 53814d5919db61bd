"""One driver to a run folder: a second would write the same archive and checkpoints, and lose what the first writes.

The lock (`flock` on the file `.driver`) ends with the process, however that ends. It also holds between hosts where the
file system passes locks on, as NFS 4 does. A run with a `store` has a lease there besides (`runs.in_store.lease`).
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable
from pathlib import Path

from cluster.errors import UserError

FILE = ".driver"
_MOST = 200
"""Bytes of the holder's words that are shown."""


class Driver:
    """This process as the driver of a run folder. `hold` may be called again; `close` gives the folder free."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._descriptor: int | None = None

    def hold(self, say: Callable[[str], None]) -> None:
        """Makes the folder this process's. Where the file system has no locks, says so and goes on.

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
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(opened, _MOST, 0).decode(errors="replace").strip() or "another process"
            os.close(opened)
            todo = f"Follow it with `squelch watch {self.folder}`, or stop it first"
            raise UserError(f"{self.folder}: {holder} drives this run. {todo}") from None
        except OSError as error:
            say(f"{self.folder} cannot be locked ({error}): make sure that no other process drives this run")
        os.ftruncate(opened, 0)
        os.pwrite(opened, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        self._descriptor = opened

    def close(self) -> None:
        """Gives the folder free."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
