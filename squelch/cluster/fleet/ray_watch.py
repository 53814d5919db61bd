"""Watches the processes of Ray without which this process cannot go on: the raylet of its node, and the head's gcs.

No call of Ray tells in time that they are gone. Its client ends the process, without an exception, once gcs has not
answered for the reconnect time-out, and calls that need gcs do not return until then; without its raylet a node loses
all of its actors and starts no others. So a thread connects to both ports every `POLL_S` seconds. It calls nothing of
Ray, and `local_ray.patient_client` makes the client's time-out so long that this thread is first.

    who         is gone when its port                           noticed within
    raylet      refuses twice in a row: the process has ended   2 s
    gcs         refuses for REFUSED_S: a head with an external  20 s
                Redis is started again within that time
    either      does not answer for SILENT_S, or its host       30 s

A signal shortly before or after the loss is its cause: a service manager, `scancel` and a shutdown send it to every
process, whatever its session.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import ray

from squelch.cluster.fleet.bootstrap import probe
from squelch.kit.process.process_exit import leave
from squelch.kit.process.signals import current

POLL_S = 1.0
PROBE_S = 5.0
"""Seconds within which a process that works answers."""
REFUSED_S = 15.0
SILENT_S = 20.0
STOP_S = 5.0
"""Seconds within which whoever ends a machine or a service signals all of its processes."""
RAYLET_S = 15.0
"""Most seconds that a raylet takes to end after SIGTERM: it ends its workers first."""
LEAST_FAILURES = 2
"""Failed probes before anything counts as gone: a machine that was suspended gets another chance to answer."""


@dataclass
class Watched:
    """A process of Ray: its name for people, the `host:port` where it listens, and how long that may refuse."""

    name: str
    address: str
    may_refuse_s: float
    failures: int = 0
    """Probes in a row that failed."""
    since: float = 0.0
    """When the first of them began, seconds of the monotonic clock."""

    def gone(self) -> str | None:
        """Probes the process; returns why it counts as gone, or None."""
        began = time.monotonic()
        error = self.error()
        if error is None:
            self.failures = 0
            return None
        self.since = self.since if self.failures else began
        self.failures += 1
        bound = self.may_refuse_s if isinstance(error, ConnectionError) else SILENT_S
        late = self.failures >= LEAST_FAILURES and time.monotonic() - self.since >= bound
        return self.words(error) if late else None

    def error(self) -> OSError | None:
        """The error of one probe; None if the process answers."""
        try:
            probe(self.address, PROBE_S)
        except OSError as error:
            return error
        return None

    def words(self, error: OSError) -> str:
        """What the error of a probe says about the process."""
        state = "has ended" if isinstance(error, ConnectionError) else f"has not answered for {SILENT_S:g} s"
        return f"{self.name} at {self.address} {state} ({error})"


class RayWatch:
    """Looks at the processes in a thread until it is closed. `on_gone` is called there, once, with the reason in
    words."""

    def __init__(self, watched: Sequence[Watched], on_gone: Callable[[str], None]) -> None:
        self._watched, self._on_gone = watched, on_gone
        self._lost_at: float | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="ray-watch", daemon=True)
        self._thread.start()

    def ended(self) -> str | None:
        """In words, the process that has ended; None if each port is open. For a run that has failed: its error may be
        the first sign."""
        errors = ((one, one.error()) for one in self._watched)
        return next((one.words(error) for one, error in errors if isinstance(error, ConnectionError)), None)

    def cause(self) -> signal.Signals | None:
        """The signal that has ended Ray, for which this waits STOP_S; None if there is none."""
        return current().beside(self._lost_at or time.monotonic(), STOP_S + RAYLET_S, STOP_S)

    def close(self) -> None:
        """Ends the watch. It may be called on its own thread."""
        self._closed.set()

    def _work(self) -> None:
        while not self._closed.wait(POLL_S):
            found = next(((one, why) for one in self._watched if (why := one.gone())), None)
            if found is not None and not self._closed.is_set():
                lost, why = found
                self._lost_at = lost.since
                self._on_gone(why)
                return


@contextmanager
def ray_watched(say: Callable[[str], None]) -> Iterator[None]:
    """Ends the process, with a line, if Ray is gone while the block runs; for commands that leave nothing to write."""

    def gone(why: str) -> None:
        stopped = watch.cause()
        say(f"stopped by {stopped.name}: {why}" if stopped else f"failed: {why}. Repeat the command once Ray is up")
        leave(128 + stopped if stopped else 1)

    watch = watch_ray(gone)
    try:
        yield
    finally:
        watch.close()


def watch_ray(on_gone: Callable[[str], None]) -> RayWatch:
    """A watch of the raylet and the gcs to which this process is connected; of neither through `ray://`, where they
    are another process's."""
    if ray.util.client.ray.is_connected():
        return RayWatch([], on_gone)
    context = ray.get_runtime_context()
    node = next(node for node in ray.nodes() if node["NodeID"] == context.get_node_id())
    raylet = f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"
    watched = [
        Watched(f"Ray's node {node['NodeManagerAddress']}, on which this run is driven: its raylet", raylet, 0.0),
        Watched("Ray's head: its gcs", context.gcs_address, REFUSED_S),
    ]
    return RayWatch(watched, on_gone)
