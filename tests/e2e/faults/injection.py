"""Injects faults into the processes, the disk and the network of a run that is under way.

A fault that lasts is undone by its own thread; `Injected.end` waits for that.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.e2e.faults.plan import DRIVER, Fault
from tests.e2e.hosts import PREFIX, Hosts

STOPPED_S, RUNNING_S = 0.4, 0.1
"""Of each half second a slow process runs a fifth."""
MEMORY_LEFT = 2**20
"""Bytes that a process may still allocate under the kind memory."""
DISK_MIB = 256
BLOCK = bytes(2**20)
UNDO_S = 60.0


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A disk of `DISK_MIB` of its own, mounted at the folder; `remove_leftovers` knows it by its name."""
    folder.mkdir(parents=True, exist_ok=True)
    disk = ["-t", "tmpfs", "-o", f"size={DISK_MIB}m", f"{PREFIX}-{os.getpid()}"]
    subprocess.run(["mount", *disk, str(folder)], check=True, timeout=180)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=180)


@dataclass
class Injected:
    """A fault under way. `victim`: what it befell, in words; empty if no such process ran."""

    victim: str = ""
    _thread: threading.Thread | None = None
    undone: threading.Event = field(default_factory=threading.Event)

    def later(self, work: Callable[[], None]) -> None:
        """Runs `work`, which ends the fault."""
        self._thread = threading.Thread(target=self._undo, args=(work,), daemon=True)
        self._thread.start()

    def _undo(self, work: Callable[[], None]) -> None:
        work()
        self.undone.set()

    def end(self) -> None:
        """Returns once the fault is over; one that stays is over at once."""
        if self._thread is not None and not self.undone.wait(UNDO_S):
            raise TimeoutError(f"the fault in {self.victim} was not undone within {UNDO_S:g} s")


class Injector:
    """Injects faults into a run on `hosts`, whose folder is on the disk `disk`."""

    def __init__(self, hosts: Hosts, disk: Path) -> None:
        self.hosts, self.disk = hosts, disk

    def inject(self, fault: Fault, driver: psutil.Process) -> Injected:
        """Begins the fault; `driver` is the run's own process."""
        return getattr(self, f"_{fault.kind}")(fault, driver)

    def processes(self, target: str, driver: psutil.Process) -> list[psutil.Process]:
        """The processes of this kind, in order of their ids."""
        if target == DRIVER:
            return [driver]
        everywhere = [p for host in [self.hosts.driver, *self.hosts.others] for p in host.processes()]
        return sorted((p for p in everywhere if _is(p, target)), key=lambda p: p.pid)

    def _victim(self, fault: Fault, driver: psutil.Process) -> psutil.Process | None:
        found = self.processes(fault.target, driver)
        return found[fault.pick % len(found)] if found else None

    def _kill(self, fault: Fault, driver: psutil.Process) -> Injected:
        return self._signalled(fault, driver, signal.SIGKILL)

    def _stop(self, fault: Fault, driver: psutil.Process) -> Injected:
        return self._signalled(fault, driver, signal.SIGSTOP)

    def _signalled(self, fault: Fault, driver: psutil.Process, number: signal.Signals) -> Injected:
        victim = self._victim(fault, driver)
        if victim is None:
            return Injected()
        injected = Injected(_named(victim))
        victim.send_signal(number)
        return injected

    def _slow(self, fault: Fault, driver: psutil.Process) -> Injected:
        victim = self._victim(fault, driver)
        if victim is None:
            return Injected()
        injected = Injected(_named(victim))
        injected.later(lambda: _slow_down(victim, fault.lasts_s))
        return injected

    def _memory(self, fault: Fault, driver: psutil.Process) -> Injected:
        victim = self._victim(fault, driver)
        if victim is None:
            return Injected()
        bound = victim.memory_info().vms + MEMORY_LEFT
        injected = Injected(_named(victim))
        resource.prlimit(victim.pid, resource.RLIMIT_AS, (bound, bound))
        return injected

    def _disk(self, fault: Fault, driver: psutil.Process) -> Injected:
        filler = self.disk / "filler"
        injected = Injected(f"disk of {DISK_MIB} MiB")
        _fill(filler)

        def free() -> None:
            time.sleep(fault.lasts_s)
            filler.unlink()

        injected.later(free)
        return injected

    def _partition(self, fault: Fault, driver: psutil.Process) -> Injected:
        host = self.hosts.others[fault.pick % len(self.hosts.others)]
        injected = Injected(f"host {host.name}")
        self.hosts.cut(host)

        def mend() -> None:
            time.sleep(fault.lasts_s)
            self.hosts.cut(host, down=False)

        injected.later(mend)
        return injected


def _is(process: psutil.Process, target: str) -> bool:
    """Whether this is a process of the kind, by its title; Ray titles a process by its actor's class."""
    try:
        title = " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False
    return target in title and (title.startswith("ray::") or "EngineCore" in title.partition(" ")[0])


def _named(process: psutil.Process) -> str:
    first, *words = process.cmdline() or [process.name()]  # without the folder, which is this machine's
    return f"{' '.join([Path(first).name, *words])[:60]} (process {process.pid})"


def _slow_down(process: psutil.Process, lasts_s: float) -> None:
    deadline = time.monotonic() + lasts_s
    try:
        while time.monotonic() < deadline:
            process.send_signal(signal.SIGSTOP)
            time.sleep(STOPPED_S)
            process.send_signal(signal.SIGCONT)
            time.sleep(RUNNING_S)
    except psutil.NoSuchProcess:
        return


def _fill(path: Path) -> None:
    """Writes zeros until the disk is full."""
    with path.open("wb", buffering=0) as file:
        while True:
            try:
                if file.write(BLOCK) < len(BLOCK):
                    continue
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                os.fsync(file.fileno())
                return
