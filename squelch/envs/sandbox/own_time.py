"""The time that counts against a program's limit: wall-clock time without the time that it waited for a core.

On a machine with fewer free cores than runnable processes, a right program would otherwise be late because of its
neighbours. The kernel counts, for each task, the time on a core and the time runnable without one
(`/proc/PID/task/TID/schedstat`). Of a program's tasks the waiting times are added; their sum counts up to the time in
which the program used no core at all, so a program whose own processes compete with each other gains nothing. At most
`STRETCH - 1` limits are taken off, so a test ends after `STRETCH` limits at the latest.

The times are looked at every `LOOK_S` on average while a test runs; a test that ends sooner is charged in full. The
kernel forgets the times of a task that ends. So the time between two looks is charged in full if a task of the first
is gone at the second, and the program cannot foresee the looks: one that lets children compete with it, each of which
begins and ends between two looks, gains at most about a sixth.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

STRETCH = 4
"""A test may take this many times its limit if it waits for a core."""
LOOK_S = 0.05
Times = tuple[float, float]
"""Seconds of a task (on a core, waiting for one)."""
CLOSE_S = 0.002
"""Seconds before the limit at which a test counts as late."""
PROC = Path("/proc")


class OwnTime:
    """The time of one test, from this object's creation on."""

    def __init__(self, harness: int | None, limit_s: float) -> None:
        self._harness, self._limit_s = harness, limit_s
        self._waited_s = self._idle_s = self._waiting_s = 0.0
        self._seen = {(harness, harness): _task(harness, harness)} if harness else {}
        self._started = self._looked = time.monotonic()

    @property
    def used_s(self) -> float:
        """Seconds that count against the limit, as of the last look."""
        return time.monotonic() - self._started - self._waited_s

    @property
    def next_look_s(self) -> float:
        """Seconds until the next look."""
        return max(CLOSE_S, min(LOOK_S * random.uniform(0.5, 1.5), self._limit_s - self.used_s))

    def is_over(self) -> bool:
        """Looks at the tasks; whether the limit is reached."""
        if self._harness is not None:
            self._look(sandbox_tasks(self._harness))
        return self._limit_s - self.used_s < CLOSE_S

    def _look(self, tasks: dict[tuple[int, int], Times]) -> None:
        """Adds the time since the last look, unless a task has ended meanwhile."""
        now, gone = time.monotonic(), (-1.0, 0.0)
        if all(tasks.get(task, gone)[0] >= times[0] for task, times in self._seen.items()):
            on_core, waiting = (
                sum(times[kind] for times in tasks.values()) - sum(times[kind] for times in self._seen.values())
                for kind in (0, 1)
            )
            self._idle_s += now - self._looked - on_core
            self._waiting_s += waiting
            waited = min(self._waiting_s, self._idle_s, (STRETCH - 1) * self._limit_s)
            self._waited_s = max(self._waited_s, waited)
        self._seen, self._looked = tasks, now


def sandbox_tasks(harness: int) -> dict[tuple[int, int], Times]:
    """The times of each task of the harness and of its descendants, by process and task."""
    found, waiting = dict[tuple[int, int], Times](), [harness]
    while waiting:
        pid = waiting.pop()
        for task in _tasks(pid):
            found[pid, task] = _task(pid, task)
            waiting += _children(pid, task)
    return found


def _tasks(pid: int) -> list[int]:
    try:
        return [int(entry.name) for entry in (PROC / str(pid) / "task").iterdir()]
    except OSError:  # it has ended
        return []


def _task(pid: int, task: int) -> Times:
    """Zeros where the task has ended, or the kernel does not tell."""
    try:
        on_core, waiting, _ = (PROC / f"{pid}/task/{task}/schedstat").read_text().split()
    except (OSError, ValueError):
        return 0.0, 0.0
    return int(on_core) / 1e9, int(waiting) / 1e9


def _children(pid: int, task: int) -> Iterator[int]:
    try:
        yield from map(int, (PROC / f"{pid}/task/{task}/children").read_text().split())
    except OSError:
        return


def is_counted() -> bool:
    """Whether this kernel tells how long a task waits for a core."""
    try:
        return (PROC / "self/schedstat").read_text().split()[0] != "0"
    except (OSError, IndexError):
        return False
