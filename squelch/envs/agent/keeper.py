"""Runs one command and ends all that it started. `envs.agent.kept` starts it as a script, without site packages:

    keeper.py CONTROL MEMORY_BYTES FOLDER COMMAND...

`CONTROL` is the number of an inherited stream socket. The keeper waits for the command's end, or for the socket's end,
and then kills every process that descends from the command, in whatever session or group it is: the kernel gives the
keeper the orphans among them (PR_SET_CHILD_SUBREAPER). If the socket ended first, whoever had its other end may be
gone, so the keeper removes `FOLDER`, unless that is empty. Its last line to the socket is JSON:

    {"code": 0} or {"signal": 9} or {"error": "why the command could not be started"}

The keeper waits for as long as the command runs; the socket's end bounds that. Killing is bounded by `KILL_S`.
"""

import contextlib
import ctypes
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
KILL_S = 5.0
PAUSE_S = 0.005


def main(control: str, memory_bytes: str, folder: str, *command: str) -> None:
    """Keeps the command until it ends or the socket does."""
    channel = socket.socket(fileno=int(control))
    channel.set_inheritable(False)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pid, error = start(command, int(memory_bytes))
    report: dict[str, Any] = {"error": error}
    orphaned = False
    if pid and not error:
        how = ended(pid, channel)
        report = {"signal": signal.SIGKILL.value} if how is None else how
        orphaned = how is None
    kill_all(pid)
    if orphaned and folder:
        remove(folder)
    with contextlib.suppress(OSError):  # nobody listens where the socket's end was the reason
        channel.sendall(json.dumps(report).encode() + b"\n")


def start(command: "tuple[str, ...]", memory_bytes: int) -> "tuple[int, str]":
    """(id of the started process, why it could not be started)."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            os.setsid()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if memory_bytes:
                resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
            os.execvp(command[0], command)
        except BaseException as error:
            os.write(writing, str(error).encode()[:500])
        finally:
            os._exit(127)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        return pid, pipe.read().decode(errors="replace")  # the exec closes the other end


def ended(pid: int, channel: socket.socket) -> "dict[str, Any] | None":
    """How the process ended; None if the socket ended first."""
    process, poll = os.pidfd_open(pid), select.poll()
    poll.register(process, select.POLLIN)
    poll.register(channel, select.POLLIN)
    ready = {descriptor for descriptor, _ in poll.poll()}
    os.close(process)
    if process not in ready:
        return None
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert found is not None
    return {"code": found.si_status} if found.si_code == os.CLD_EXITED else {"signal": found.si_status}


def kill_all(first: int) -> None:
    """Kills and reaps every process below this one. `first`: the command's."""
    deadline = time.monotonic() + KILL_S
    with contextlib.suppress(OSError):  # it may have left its group, or be gone
        os.killpg(first, signal.SIGKILL)
    while True:
        for pid in below(os.getpid()):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        if time.monotonic() > deadline:
            return
        time.sleep(PAUSE_S)


def remove(folder: str) -> None:
    """Removes a folder and all in it, also where an agent has changed the modes of folders. What links lead to stays as
    it is: `tempfile.TemporaryDirectory` may change its mode."""
    rmtree = importlib.import_module("shutil").rmtree  # rarely needed, and slow to import
    rmtree(folder, ignore_errors=True)
    left = [] if os.path.islink(folder) else [folder]
    while left:
        with contextlib.suppress(OSError):  # it is gone, as it is unless a mode was changed, or another user's
            path = left.pop()
            os.chmod(path, 0o700)
            with os.scandir(path) as entries:
                left += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    rmtree(folder, ignore_errors=True)


def below(pid: int) -> "set[int]":
    """The processes that descend from one."""
    found: set[int] = set()
    left = [pid]
    while left:
        for child in children(left.pop()):
            if child not in found:
                found.add(child)
                left.append(child)
    return found


def children(pid: int) -> "list[int]":
    """The children of a process; none if it is gone."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
                found += map(int, file.read().split())
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
