"""How long a process was ready to run but had no processor, so that one that a loaded machine starves is not taken for
hung.

Linux counts, for each thread, the time for which it was runnable and waited on a run queue
(`/proc/PID/task/TID/schedstat`, second field, nanoseconds). A thread that sleeps, waits for a lock or a message, or is
stopped, waits on no run queue, and a process that is hung so does not add to this time. If the kernel does not report
it, it is 0.
"""

from __future__ import annotations

import os
import time
from pathlib import Path


class ProcessorWait:
    """The time for which this process and its descendants waited for a processor.

    Between two readings it is that of the thread that waited longest, because a part of work waits for the slowest of
    its threads, and at most the time between them. `itself`: whether the process's own threads count, and not only its
    descendants': those of a process whose work a child does wait for a processor while the child is hung."""

    def __init__(self, pid: int | None = None, itself: bool = True) -> None:
        self.pid, self._itself = os.getpid() if pid is None else pid, itself
        self._total_s, self._read_at = 0.0, time.monotonic()
        self._known = _waits_s(self.pid, itself)

    def seconds(self) -> float:
        """Seconds since the object was made."""
        now, found = time.monotonic(), _waits_s(self.pid, self._itself)
        longest = max((waited - self._known.get(thread, 0.0) for thread, waited in found.items()), default=0.0)
        self._total_s += min(longest, now - self._read_at)
        self._known, self._read_at = found, now
        return self._total_s


def _waits_s(pid: int, itself: bool) -> dict[int, float]:
    """The seconds on run queues of each thread of a process's descendants, and of the process."""
    found: dict[int, float] = {}
    open_pids = [pid]
    while open_pids:
        current = open_pids.pop()
        tasks = Path(f"/proc/{current}/task")
        try:
            threads = os.listdir(tasks)
        except OSError:  # it has ended, or this is not Linux
            continue
        for thread in threads:
            try:
                if itself or current != pid:
                    found[int(thread)] = int((tasks / thread / "schedstat").read_text().split()[1]) / 1e9
                open_pids += map(int, (tasks / thread / "children").read_text().split())
            except (OSError, IndexError):  # the thread has ended, or the kernel does not count
                continue
    return found
