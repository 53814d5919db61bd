"""Where an actor's process writes what it prints: one file an actor, in the run's folder."""

from __future__ import annotations

import logging
import os
from pathlib import Path

VARIABLE = "SQUELCH_LOG"
"""Environment variable that names the file."""
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
HOOK = f"{__name__}.take_output"
"""For Ray's `worker_process_setup_hook`: runs in every worker process before its actor is created."""


def log_variable(folder: Path, actor: str) -> dict[str, str]:
    """The environment variable that sends an actor's output to `folder/ACTOR.log`."""
    return {VARIABLE: str(folder.absolute() / f"{actor}.log")}


def take_output() -> None:
    """Sends this process's stdout and stderr, its child processes' too, to the end of the file that it was given.

    Output stays where Ray puts it if no file was named, or its folder is not there: a node of a cluster need not see
    the run's folder.
    """
    path = Path(os.environ.get(VARIABLE, ""))
    if not path.name or not path.parent.is_dir():
        return
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    logging.basicConfig(level=logging.INFO, format=FORMAT)
    logging.getLogger(__name__).info("process %d is %s", os.getpid(), path.stem)
