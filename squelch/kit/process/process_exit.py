"""The end of this process by `os._exit`, where Python's own end may not return: in it Ray would disconnect, which waits
for Ray's head."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress

_works: list[Callable[[], None]] = []
_held_by: list[str] = []


def before_leaving(work: Callable[[], None]) -> None:
    """Has `leave` call `work`, which waits at most seconds; once, however often this is called."""
    if work not in _works:
        _works.append(work)


def must_leave(because: str) -> None:
    """Notes that this process has to end by `leave`, and why."""
    _held_by.append(because)


def has_to_leave() -> str | None:
    """Why this process has to end by `leave`; None if Python may end it."""
    return _held_by[0] if _held_by else None


def leave(code: int) -> None:
    """Ends this process at once, whatever its threads wait for; does not return."""
    try:
        for work in _works:
            work()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # its disk is full, or it is closed
                stream.flush()
    finally:
        os._exit(code)
