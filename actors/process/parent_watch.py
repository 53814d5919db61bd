"""Ends a process when the one it belongs to is gone, so that a killed worker leaves no engine behind."""

from __future__ import annotations

import os
import signal
import threading
import time

PARENT_VARIABLE = "SQUELCH_ENGINE_PARENT"
"""Process id of the worker that an engine belongs to; set by the worker, read in the engine's processes."""

_POLL_S = 1.0


def watch_parent() -> None:
    """In a process of an engine: end it within about a second of the worker's end, however that comes."""
    parent = os.environ.get(PARENT_VARIABLE, "")
    if parent and int(parent) != os.getpid():
        threading.Thread(target=end_with, args=(int(parent),), daemon=True, name="parent-watch").start()


def end_with(parent: int) -> None:
    """Blocks until that process is gone, then ends this one."""
    while _exists(parent):
        time.sleep(_POLL_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _exists(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True
