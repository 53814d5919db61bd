"""Preparation of each process of a run: other users cannot access the files that it creates, and its children do not
import modules of the current folder; an actor's process also redirects its output."""

from __future__ import annotations

import os

HOOK = f"{__name__}.prepare"
"""For Ray's `worker_process_setup_hook`: runs in every worker process before its actor is created."""
START_FOLDER = "SQUELCH_START_FOLDER"
"""Environment variable that names the folder in which the run was started, if Ray starts actors in another one."""
OTHERS_WRITE = 0o022
"""Write permission of the group and of all others."""


def prepare() -> None:
    """Prepares the process of an actor."""
    from squelch.actors.process.log import (
        take_output,  # imports logging; commands that only protect themselves start without
    )

    protect()
    os.chdir(os.environ.get(START_FOLDER, "."))
    take_output()


def protect() -> None:
    """Takes from other users the right to write the files and sockets that this process and its children make;
    otherwise the user's umask stays as it is. A later child that runs `python -m` does not import modules from the
    current folder, which may hold files of strangers."""
    os.umask(os.umask(OTHERS_WRITE) | OTHERS_WRITE)
    os.environ["PYTHONSAFEPATH"] = "1"
