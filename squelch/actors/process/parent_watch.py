"""Ends an engine's process when its worker's process ends, so that a killed worker leaves no engine behind."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

PARENT_VARIABLE = "SQUELCH_ENGINE_PARENT"
"""Variable with the process id of an engine's worker: the worker sets it, the engine's processes read it."""

_POLL_S = 1.0
_PR_SET_PDEATHSIG = 1


def watch_parent() -> None:
    """Makes this engine process end within about a second after its worker ends, even if the worker was killed. On
    Linux the kernel ends it together with the thread that started it, so that a stopped process ends too."""
    parent = os.environ.get(PARENT_VARIABLE, "")
    if parent and int(parent) != os.getpid():
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        threading.Thread(target=end_with, args=(int(parent),), daemon=True, name="parent-watch").start()


def end_with(parent: int) -> None:
    """Blocks until the process `parent` is gone, then ends this process."""
    while _exists(parent):
        time.sleep(_POLL_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _exists(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True
