"""Preparation of each process of a run: other users cannot access the files that it creates, and its children do not
import modules of the current folder; an actor's process also redirects its output."""

from __future__ import annotations

import os
from typing import Any

HOOK = f"{__name__}.prepare"
"""For Ray's `worker_process_setup_hook`: runs in every worker process before its actor is created."""
START_FOLDER = "SQUELCH_START_FOLDER"
"""Environment variable that names the folder in which the run was started, if Ray starts actors in another one."""
SEMAPHORES = "squelch"
"""Beginning of the names of the semaphores of actors' processes and of their children: those of killed processes stay,
and the next run can tell them from others' (`cluster.fleet.leftovers`)."""
OTHERS_WRITE = 0o022
"""Write permission of the group and of all others."""


def prepare() -> None:
    """Prepares the process of an actor."""
    import multiprocessing  # here, because commands that only protect themselves start faster without these two

    from squelch.actors.process.log import take_output

    protect()
    own: Any = multiprocessing.current_process()
    own._config["semprefix"] = f"/{SEMAPHORES}"  # there is no public name for it
    os.chdir(os.environ.get(START_FOLDER, "."))
    take_output()


def protect() -> None:
    """Takes from other users the right to write the files and sockets that this process and its children make;
    otherwise the user's umask stays as it is. A later child that runs `python -m` does not import modules from the
    current folder, which may hold files of strangers."""
    os.umask(os.umask(OTHERS_WRITE) | OTHERS_WRITE)
    os.environ["PYTHONSAFEPATH"] = "1"
