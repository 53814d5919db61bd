"""The errors with which Ray reports that an actor's process is gone, and the cause of a death in one sentence."""

from __future__ import annotations

import re
from pathlib import Path

from ray.exceptions import ActorUnavailableError, OutOfMemoryError, RayActorError

DEAD = (RayActorError, OutOfMemoryError)
"""Ray's memory monitor raises OutOfMemoryError, which does not subclass RayActorError."""
KERNEL_COUNTS = Path("/proc/vmstat")
_MEMORY = re.compile(r"was (\S+ used / \S+ limit)")
_LOST_NODE = re.compile(r"the actor's node was terminated [a-z]+: (.*)")
_OWNER = re.compile(r"its owner has died.*Worker exit detail: (.*)", re.DOTALL)
"""Ray's text about an actor whose owner, the driver, it has lost, as when the driver's raylet is gone."""
_PEER = re.compile(r"ipv4:([\d.]+):\d+")
"""Whom a call of Ray's could not reach."""
UNREACHED = "was lost or cannot be reached"
"""Text about a lost host, whether Ray's health check or a call to one of its processes notices it first."""
_ENDED_ALONE = "Worker exit type: SYSTEM_ERROR"
"""Ray's words for a process that ended without telling Ray: by a signal, or because it crashed."""


class KernelKills:
    """Processes of this host that the kernel's out-of-memory killer has ended, counted by the kernel."""

    def __init__(self, counts: Path = KERNEL_COUNTS) -> None:
        self._counts = counts
        self._seen = self._read()

    def _read(self) -> int:
        """The kernel's count; 0 on a kernel without it."""
        if not self._counts.is_file():
            return 0
        lines = (line.split() for line in self._counts.read_text().splitlines())
        return next((int(value) for name, value in lines if name == "oom_kill"), 0)

    def new(self) -> int:
        """Their number since the last call."""
        before, self._seen = self._seen, self._read()
        return self._seen - before


HOST = KernelKills()
"""The kernel's count on this process's host."""


def cause_of_death(error: BaseException, kills: KernelKills = HOST) -> str:
    """The cause of an actor's death in one sentence, instead of Ray's page. Memory is named if Ray's monitor ended the
    process. If the process was killed by a signal, Ray does not know by whom: the kernel's count on this host shows
    it."""
    text = str(error)
    place = _place(text)
    if isinstance(error, OutOfMemoryError) or "running low on memory" in text:
        used = _MEMORY.search(text)
        memory = f" ({used[1]})" if used else ""
        return f"out of memory: Ray's memory monitor ended its process{place}, because the node ran low{memory}"
    if lost := _LOST_NODE.search(text):
        return f"the host of its process{place} {UNREACHED}: {lost[1]}"
    if isinstance(error, ActorUnavailableError):
        return f"the host of its process{place} {UNREACHED}: a call to it failed"
    if owner := _OWNER.search(text):
        return f"Ray ended its process{place}, because it took the driver for gone: {owner[1]}"
    if _ENDED_ALONE not in text:
        return text
    if new := kills.new():
        return (
            f"its process{place} was killed, probably out of memory: the kernel's out-of-memory killer has ended {new} "
            "processes on the driver's host since the last death"
        )
    return f"its process{place} was killed by a signal, or crashed (its own log may say more)"


def _place(text: str) -> str:
    pid, address = re.search(r"\tpid: (\S+)", text), re.search(r"\tip: (\S+)", text) or _PEER.search(text)
    words = [f"{pid[1]}"] if pid else []
    words += [f"on {address[1]}"] if address else []
    return f" {' '.join(words)}" if words else ""
