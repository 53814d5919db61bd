"""The folders of agents' commands: `squelch-agent-task-*` among the temporary files, one a trajectory.

The process that plays the trajectory holds a lock on its folder, and removes it in a thread: an agent may leave very
many files. A folder without a lock belongs to a process that has ended, as has perhaps the keeper that would have
removed it (`keeper.py`). `remove_left` ends what still runs of such commands, and removes their folders: beside the
first trajectory of a process, and when a run has ended (`cluster.fleet.local_ray`).
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import tempfile
import time
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path

from squelch.envs.agent.keeper import remove

PREFIX = "squelch-agent-task-"
TASK, TASK_FILE = "SQUELCH_TASK", "task.json"
"""The environment variable by which the processes of a command are known, and the file in the folder that it names."""
END_S = 5.0
"""Most seconds in which the processes of a command are ended that has no keeper any more."""
PAUSE_S = 0.005
KEY = "environment.options.keep_home"


@asynccontextmanager
async def folder_of_trajectory() -> AsyncIterator[str]:
    """A folder for one trajectory, which is removed at the end."""
    made = await asyncio.to_thread(_made)
    try:
        yield made.name
    finally:
        await asyncio.shield(asyncio.wrap_future(_in_own_thread(made.end)))


def check_kept(kept: Sequence[str]) -> None:
    """Raises ValueError for what cannot be kept of our home folder."""
    paths = list(map(Path, kept))
    for index, (name, path) in enumerate(zip(kept, paths, strict=True)):
        others = paths[:index] + paths[index + 1 :]
        if not name or path.is_absolute() or ".." in path.parts or any(path.is_relative_to(other) for other in others):
            raise ValueError(
                f"{KEY}: {name!r} must be a path below your home folder, and neither below another one of them nor "
                "given twice"
            )
    for path in paths:
        if not (Path.home() / path).exists():
            raise ValueError(f"{KEY}: there is no {Path.home() / path}")


def all_is_kept(kept: Sequence[str]) -> bool:
    """Whether our home folder itself is among what is kept of it."""
    return Path() in map(Path, kept)


def made_home(folder: str, kept: Sequence[str]) -> str:
    """A home folder below a trajectory's folder, with links to the files and folders that are kept of ours; ours, if
    all of it is."""
    ours, home = Path.home(), Path(folder, "home")
    if all_is_kept(kept):
        return str(ours)
    home.mkdir()
    for name in kept:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).symlink_to(ours / name)
    return str(home)


def end_started_in(folder: str) -> None:
    """Kills the processes of a command whose keeper is gone: those with the folder's task in their environment."""
    word, deadline = f"{TASK}={os.path.join(folder, TASK_FILE)}".encode(), time.monotonic() + END_S
    while (found := _with_variable(word)) and time.monotonic() < deadline:
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(PAUSE_S)


def remove_left() -> None:
    """Ends and removes what commands have left of processes that have ended."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        if (lock := _locked(path)) is not None:
            end_started_in(str(path))
            _end(str(path), lock)


@cache
def _remove_left_once() -> None:
    """Begins to remove what was left, and does not wait for it: that would be time of an agent's."""
    _in_own_thread(remove_left)


def _in_own_thread(work: Callable[[], object]) -> Future[object]:
    """Does the work in a thread in whose place nothing else of the process waits; it ends before the process does."""
    thread = ThreadPoolExecutor(1, "agent-folder")
    doing = thread.submit(work)
    thread.shutdown(wait=False)
    return doing


class _Folder:
    """A folder under a lock. It is removed by `end`, or with this object: whoever waited for it may be gone."""

    def __init__(self, name: str, lock: int) -> None:
        self.name, self.end = name, weakref.finalize(self, _end, name, lock)


def _end(name: str, lock: int) -> None:
    try:
        remove(name)
    finally:
        os.close(lock)


def _made() -> _Folder:
    """A new folder under its lock. Until it is locked, another process may take it for one that was left; then a next
    one is made."""
    _remove_left_once()
    while True:
        made = tempfile.mkdtemp(prefix=PREFIX)
        lock = _locked(Path(made))
        if lock is not None and os.path.exists(made):
            return _Folder(made, lock)
        if lock is not None:
            os.close(lock)
        with suppress(OSError):  # the other process may have removed it
            os.rmdir(made)


def _locked(path: Path) -> int | None:
    """A descriptor that locks a folder of this user until it is closed; None if another process has the lock, or if
    there is no such folder."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        if os.fstat(descriptor).st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
    except BlockingIOError:
        pass
    os.close(descriptor)
    return None


def _with_variable(word: bytes) -> list[int]:
    """The processes in whose environment the variable stands."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):  # another user's, or gone
            if entry.name.isdigit() and word in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found
