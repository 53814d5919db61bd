"""Preparation of each process of a run: other users cannot access the files that it creates, and its children do not
import modules of the current folder; an actor's process also redirects its output."""

from __future__ import annotations

import errno
import os
import pwd
import stat
import tempfile
from typing import Any

from squelch.envs import environment_variables

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
    environment_variables.clear()
    own: Any = multiprocessing.current_process()
    own._config["semprefix"] = f"/{SEMAPHORES}"  # there is no public name for it
    os.chdir(os.environ.get(START_FOLDER, "."))
    take_output()


def settle() -> None:
    """Gives this process and its children a home and a user's name where the system knows none, as in a container whose
    user has no entry in its list: Ray, torch and vLLM ask for both. Takes from them the variables that they would
    mistake.

    Raises:
        PermissionError: the folder that would be the home is another user's.
    """
    environment_variables.clear()
    user = os.geteuid()
    if os.path.expanduser("~") == "~":
        home = os.path.join(tempfile.gettempdir(), f"squelch-home-{user}")
        os.makedirs(home, mode=0o700, exist_ok=True)
        if (found := os.lstat(home)).st_uid != user or not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o077:
            raise PermissionError(errno.EACCES, "must be a folder of yours with mode 0700, or set HOME", home)
        os.environ["HOME"] = home
    if not any(os.environ.get(name) for name in ("LOGNAME", "USER", "LNAME", "USERNAME")):
        try:
            pwd.getpwuid(user)
        except KeyError:
            os.environ["USER"] = f"user-{user}"


def protect() -> None:
    """Takes from other users the right to write the files and sockets that this process and its children make;
    otherwise the user's umask stays as it is. A later child that runs `python -m` does not import modules from the
    current folder, which may hold files of strangers."""
    os.umask(os.umask(OTHERS_WRITE) | OTHERS_WRITE)
    os.environ["PYTHONSAFEPATH"] = "1"
