"""The back ends that isolate a program, strongest first, and the choice of the strongest that works.

| back end | isolation | started by |
|---|---|---|
| namespaces | user, process, network, mount, IPC, host name spaces; read-only image; call filter; rlimits | launcher |
| bubblewrap | the same, but no bound on the number of files, which take up to a second to clear | bwrap |
| rlimits | none: resource limits only; refused unless `allow_unsafe` | |

A back end works if a probe program that runs in it is isolated: it finds no file of the host, no network, no other
process, and no writable place except its scratch space. `missing` lists limits that the probe found not to be enforced
on this machine. Programs never run as root of the host (`identity`).
"""

from __future__ import annotations

import functools
import logging
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from squelch.envs.sandbox import own_time
from squelch.envs.sandbox.identity import NOBODY, Identity, identities
from squelch.envs.sandbox.image import Image, find
from squelch.envs.sandbox.interpreter import Interpreter, Late, Lost, Reply, read_value
from squelch.envs.sandbox.limits import ERROR_BYTES, SCRATCH_BYTES, SCRATCH_INODES, Limits
from squelch.envs.sandbox.starters import FILTER, Command, Direct, Launcher, Starter

log = logging.getLogger(__name__)
START_S = 20.0
"""Seconds in which an interpreter must be ready; far more than usually needed, for machines under load."""
INSIDE = ("/python/bin/python3", "-S", "-s", "-P", "-B", "/python/harness.pyc")
ENVIRONMENT = (("LANG", "C.UTF-8"), ("PATH", "/python/bin"), ("PYTHONHASHSEED", "0"), ("LD_LIBRARY_PATH", "/lib"))
"""All environment variables of a program. With a fixed hash seed the order of its sets is the same in every run."""
OWN_TASKS = 2
"""The harness and the program, which the limit on processes counts in an isolating back end."""
HOST_FILES = (str(Path(__file__)), "/etc/passwd")
"""None of them may be there for a program. The second is for everyone to read, on every Linux; the first may lie in a
folder that the program's user cannot enter anyway, which proves nothing about the back end."""
MEND = (
    "allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, on Ubuntu also "
    "kernel.apparmor_restrict_unprivileged_userns=0, in a container `--security-opt seccomp=unconfined` or "
    "`--cap-add SYS_ADMIN`), or install bubblewrap where it alone may create them (Debian: apt-get install "
    "bubblewrap); or set environment.options.sandbox.allow_unsafe for programs that you trust"
)


@dataclass(frozen=True)
class Backend:
    """A back end that works on this machine."""

    name: str
    image: Image
    command: Command
    starts_with: Callable[[Command], Starter]
    isolates: bool = True
    missing: tuple[str, ...] = ()
    """Limits that cannot be enforced on this machine."""

    def starter(self) -> Starter:
        """What starts its interpreters; the caller closes it."""
        return self.starts_with(self.command)

    def describe(self) -> str:
        """The back end in one line, for logs and `squelch doctor`."""
        lacks = f" (not to be had here: {'; '.join(self.missing)})" if self.missing else ""
        return f"{self.name}, programs run as {self.command.identity}{lacks}"


@dataclass(frozen=True)
class Choice:
    """The strongest back end that works, and the reasons why each stronger one does not."""

    backend: Backend | None
    refused: tuple[str, ...]


def namespaces(image: Image, identity: Identity) -> Backend:
    """The back end with `launcher.py`."""
    words = (*_outside(image, image.launcher), str(image.root), str(image.filter_file))
    words += (str(SCRATCH_BYTES), str(SCRATCH_INODES), *(f"{name}={value}" for name, value in ENVIRONMENT), *INSIDE)
    return Backend("namespaces", image, Command(words, identity, _libraries(image)), Launcher)


def bubblewrap(image: Image, identity: Identity) -> Backend:
    """The back end with bwrap. Raises FileNotFoundError if bwrap is not installed."""
    program = shutil.which("bwrap")
    if program is None:
        raise FileNotFoundError("bwrap is not installed")
    spaces = ("--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts")
    words = [program, *spaces, "--unshare-cgroup-try", "--die-with-parent", "--new-session", "--as-pid-1"]
    words += ["--uid", str(NOBODY), "--gid", str(NOBODY), "--hostname", "sandbox", "--cap-drop", "ALL"]
    words += ["--ro-bind", str(image.root), "/", "--size", str(SCRATCH_BYTES), "--tmpfs", "/tmp", "--chdir", "/tmp"]
    for device in ("/dev/null", "/dev/zero", "/dev/urandom"):
        words += ["--dev-bind", device, device]
    words.append("--clearenv")
    for name, value in ENVIRONMENT:
        words += ["--setenv", name, value]
    words += ["--seccomp", FILTER, "--", *INSIDE]
    command = Command(tuple(words), identity, (("PATH", "/usr/bin:/bin"),), str(image.filter_file))
    return Backend("bubblewrap", image, command, Direct)


def rlimits(image: Image, identity: Identity) -> Backend:
    """The back end with resource limits only: the program has the access of the user that runs it."""
    words = _outside(image, image.root / "python" / "harness.pyc")
    missing = ("isolation of files, network and processes", "bounds on the number of processes and of files")
    command = Command(words, identity, (*_libraries(image), ("PYTHONHASHSEED", "0")))
    return Backend("rlimits", image, command, Direct, isolates=False, missing=missing)


def _outside(image: Image, script: Path) -> tuple[str, ...]:
    return (str(image.root / "python" / "bin" / "python3"), "-S", "-s", "-P", "-B", str(script))


def _libraries(image: Image) -> tuple[tuple[str, str], ...]:
    return (("LD_LIBRARY_PATH", str(image.root / "lib")),)


Maker = Callable[[Image, Identity], Backend]
STRONGEST_FIRST: tuple[Maker, ...] = (namespaces, bubblewrap)


def choose(allow_unsafe: bool, makers: tuple[Maker, ...] | None = None) -> Backend:
    """The strongest back end that works on this machine. Raises ValueError, with possible fixes, if none isolates."""
    choice = probe_all(makers or STRONGEST_FIRST)
    if choice.backend is not None:
        log.info("sandbox: %s", choice.backend.describe())
        return choice.backend
    why = "; ".join(choice.refused)
    if not allow_unsafe:
        raise ValueError(
            f"sandbox: nothing here isolates model-written programs, so none is run. {why}. To mend it: {MEND}"
        )
    log.warning("sandbox: allow_unsafe is set and NOTHING ISOLATES model-written programs here (%s)", why)
    identity = identities()[-1]
    return rlimits(find(identity), identity)


@functools.cache
def probe_all(makers: tuple[Maker, ...] = STRONGEST_FIRST) -> Choice:
    """Tries each back end, once per process; takes a fraction of a second."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        return Choice(None, ("the sandbox is written for Linux on x86-64",))
    refused: list[str] = []
    for identity in identities():
        try:
            image = find(identity)
        except (ValueError, RuntimeError) as error:
            refused.append(f"as {identity}: {error}")
            continue
        for maker in makers:
            try:
                return Choice(probe(maker(image, identity)), tuple(refused))
            except (OSError, Lost, Late, ValueError) as error:
                refused.append(f"{maker.__name__} as {identity}: {str(error) or 'it did not start in time'}")
    return Choice(None, tuple(refused))


def probe(backend: Backend) -> Backend:
    """The back end with its missing limits. Raises ValueError if a program in it is not isolated."""
    reply = _probe_in(backend)
    if reply.status or reply.value is None:
        raise ValueError(f"the probe failed in it: {reply.error.decode(errors='replace').strip()[-300:]}")
    found = read_value(reply.value)
    if found["open"]:
        raise ValueError(f"a program in it is not locked in: {', '.join(found['open'])}")
    missing = [*found["missing"]]
    if not own_time.is_counted():
        missing.append("time limits without the time that a program waits for a core")
    return replace(backend, missing=tuple(missing))


def _probe_in(backend: Backend) -> Reply:
    starter = backend.starter()
    try:
        interpreter = Interpreter(starter)
        try:
            interpreter.wait_ready(time.monotonic() + START_S)
            interpreter.begin(PROBE, "", "probe", kernel_limits(Limits(processes=3, cpu_s=5), backend.isolates))
            return interpreter.run(b"", [list(HOST_FILES), os.getpid(), SCRATCH_INODES], START_S)
        finally:
            interpreter.kill()
    finally:
        starter.close()


def kernel_limits(limits: Limits, isolates: bool) -> dict[str, int]:
    """The limits for the harness, in the kernel's units. The number of processes is bounded only if it is counted
    separately from the user's other processes."""
    return {
        "memory_bytes": limits.memory_mb * 2**20,
        "file_bytes": limits.file_mb * 2**20,
        "output_bytes": limits.output_kb * 2**10,
        "error_bytes": ERROR_BYTES,
        "cpu_s": limits.cpu_s,
        "num_tasks": OWN_TASKS + limits.processes if isolates else 0,
    }


PROBE = """
import os, errno

def refused(act):
    try:
        act()
    except OSError:
        return True
    return False

def sockets():
    import socket
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close()

def children():
    count = 0
    try:
        while count < 40:
            if os.fork() == 0:
                import time
                time.sleep(5)
                os._exit(0)
            count += 1
    except OSError:
        pass
    return count

def probe(host_files, host_pid, inodes):
    attempts = {
        "it reads the host's files": [lambda file=file: os.stat(file) for file in host_files],
        "it lists processes": [lambda: os.listdir("/proc/1")],
        "it opens sockets": [sockets],
        "it writes outside its scratch space": [lambda: os.open("/python/x", os.O_CREAT | os.O_WRONLY)],
        "it changes its root": [lambda: os.chroot("/tmp")],
        "it changes devices": [lambda: os.chmod("/dev/null", 0o666)],
    }
    found = {"open": [name for name, acts in attempts.items() if not all(map(refused, acts))], "missing": []}
    if os.getpid() == host_pid or os.getpid() > 64:
        found["open"].append("it shares the host's process numbers")
    if children() > 6:
        found["missing"].append("a bound on the number of processes")
    if not 0 < os.statvfs("/tmp").f_files <= inodes:
        found["missing"].append(f"a bound of {inodes} on the number of files")
    return found
"""
