"""How an isolated interpreter is started and killed: directly by a command, or by a launcher that serves a pool.

A started process is given one end of a stream socket as its standard input. `Direct` starts one command for each
interpreter (bubblewrap, or none). `Launcher` keeps one `launcher.py` running and asks it for each interpreter; if the
launcher has ended, the next start runs another.

`start` waits for a launcher's answer at most `ANSWER_S`; `kill` waits for the end of a process at most `END_S`.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from squelch.envs.sandbox.identity import THIS_USER, Identity

ANSWER_S = 20.0
END_S = 5.0  # seconds in which a killed process must end
STARTS = 2
"""Number of launchers tried for one interpreter."""
FILTER = "{filter}"


@dataclass(frozen=True)
class Command:
    """A command that starts an interpreter, or a launcher of interpreters."""

    arguments: tuple[str, ...]
    identity: Identity = THIS_USER
    environment: tuple[tuple[str, str], ...] = ()
    filter_file: str | None = None
    """Path of the system call filter. It is opened at each start; its descriptor replaces `FILTER` in the arguments."""


class Process(Protocol):
    """An interpreter that is starting or running."""

    @property
    def known(self) -> bool:
        """Whether the process that runs programs is known, so that `kill` ends it with all processes below it."""

    @property
    def orphaned(self) -> bool:
        """Whether it ended because its launcher ended, and not because of its program."""

    def found(self, pid: int | None) -> None:
        """Tells the id of the process that runs programs. Raises ProcessLookupError if it has ended."""

    def kill(self) -> None:
        """Ends all processes of the sandbox and waits until they are gone."""


class Starter(Protocol):
    """Starts interpreters of one back end."""

    def start(self, channel: socket.socket) -> Process:
        """Starts an interpreter with that standard input. Raises OSError."""

    def close(self) -> None:
        """Ends what serves the starts."""


class Direct:
    """Starts one command for each interpreter."""

    def __init__(self, command: Command) -> None:
        self._command = command

    def start(self, channel: socket.socket) -> DirectProcess:
        """Starts the command."""
        return DirectProcess(run(self._command, channel))

    def close(self) -> None:
        """Nothing serves the starts."""


class DirectProcess:
    """A command of ours, and its descendant that runs programs."""

    orphaned = False

    def __init__(self, outer: subprocess.Popen[bytes]) -> None:
        self._outer = outer
        self._pid_file: int | None = None

    @property
    def known(self) -> bool:
        """Whether the process that runs programs is known, or all is over."""
        return self._pid_file is not None or self._outer.poll() is not None

    def found(self, pid: int | None) -> None:
        """Tells the id of the process that runs programs."""
        if pid is not None and self._pid_file is None:
            self._pid_file = os.pidfd_open(pid)

    def kill(self) -> None:
        """The death of the namespace's first process ends all others; the outer process then ends by itself.

        If bwrap is killed while it sets up the sandbox, its child waits for it forever. So its children are killed
        first if the process that runs programs is not known.
        """
        if self._pid_file is not None:
            end(self._pid_file)
            self._pid_file = None
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._outer.wait(END_S)
        elif self._outer.poll() is None:
            children = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children")
            with contextlib.suppress(OSError):  # bwrap or one of its children may end meanwhile
                for pid in children.read_text().split():
                    os.kill(int(pid), signal.SIGKILL)
        self._outer.kill()
        self._outer.wait(END_S)


class Launcher:
    """Asks one `launcher.py` for every interpreter. Only one thread may call `start`, and it must outlive the
    interpreters: the kernel ends a launcher with the thread that started it."""

    def __init__(self, command: Command) -> None:
        self._command = command
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def start(self, channel: socket.socket) -> ServedProcess:
        """Has an interpreter started. Raises OSError with the launcher's reason."""
        for _ in range(STARTS):
            try:
                return self._ask(channel)
            except ConnectionError:  # it has ended since the last start
                self.close()
        raise OSError("the launcher has ended")

    def _ask(self, channel: socket.socket) -> ServedProcess:
        if self._server is None or self._control is None:
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._control.settimeout(ANSWER_S)
            with theirs:
                self._server = run(self._command, theirs)
        socket.send_fds(self._control, [b"S"], [channel.fileno()])
        answer, files, _, _ = socket.recv_fds(self._control, 1024, 1, socket.MSG_CMSG_CLOEXEC)
        if not answer:
            raise ConnectionResetError
        if not files:
            raise OSError(answer[1:].decode("utf-8", "replace"))
        return ServedProcess(self._server, int.from_bytes(answer, "big"), files[0])

    def close(self) -> None:
        """Ends the launcher and all of its interpreters."""
        if self._control is not None:
            self._control.close()
        if self._server is not None:
            try:
                self._server.wait(END_S)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait(END_S)
        self._server = self._control = None


class ServedProcess:
    """A process that a launcher started; it is process 1 of its namespace and runs programs itself."""

    known = True

    def __init__(self, server: subprocess.Popen[bytes], pid: int, pid_file: int) -> None:
        self._server, self.pid = server, pid
        self._pid_file: int | None = pid_file

    @property
    def orphaned(self) -> bool:
        """Whether the launcher has ended."""
        return self._server.poll() is not None

    def found(self, pid: int | None) -> None:
        """The process has been known since its start."""

    def kill(self) -> None:
        """The death of the namespace's first process ends all others."""
        if self._pid_file is not None:
            end(self._pid_file)
            self._pid_file = None


def run(command: Command, channel: socket.socket) -> subprocess.Popen[bytes]:
    """Starts the command as its user, in a session of its own, with nothing of ours except the channel."""
    passed = [os.open(command.filter_file, os.O_RDONLY)] if command.filter_file else []
    identity: dict[str, Any] = command.identity.popen()
    try:
        return subprocess.Popen(
            [str(passed[0]) if word == FILTER else word for word in command.arguments],
            stdin=channel.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=dict(command.environment),
            start_new_session=True,
            pass_fds=passed,
            **identity,
        )
    finally:
        for file in passed:
            os.close(file)


def end(pid_file: int) -> None:
    """Kills a process and waits until it, and the namespace whose first process it is, have ended."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pid_file, signal.SIGKILL)
    readable(pid_file, END_S)
    os.close(pid_file)


def readable(file: int, timeout_s: float) -> bool:
    """Whether `file` becomes readable in time (poll rather than select, because the descriptor may exceed 1024)."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(max(0.0, timeout_s) * 1000))
