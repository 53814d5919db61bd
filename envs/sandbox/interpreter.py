"""One isolated interpreter, controlled from outside: it is started, receives one program, runs its tests, and is
killed.

Invariants: an interpreter runs one program and is never reused. Its replies are data of bounded size, which are neither
executed nor unpickled. Its owner kills it; in the isolating back ends it also ends if this process dies.

`wait_ready` and `run` wait for the interpreter until their deadline; then `Late` names the late operation.
"""

from __future__ import annotations

import contextlib
import json
import marshal
import os
import select
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NO_VALUE = 0xFFFFFFFF
CREDENTIALS = struct.Struct("3i")
SETUP_S = 1.0
END_S = 5.0  # seconds in which a killed process must end


class Late(Exception):
    """The interpreter did not reply by the deadline."""


class Lost(Exception):
    """The interpreter ended, or sent data before it was asked."""


@dataclass(frozen=True)
class Command:
    """Command that starts an interpreter. `identity`: subprocess's user, group and extra_groups if they change."""

    arguments: tuple[str, ...]
    identity: tuple[tuple[str, Any], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    filter_file: str | None = None
    """Path of the system call filter. It is opened at each start; its descriptor replaces `FILTER` in the arguments."""


FILTER = "{filter}"


@dataclass(frozen=True)
class Reply:
    """A program's output after one test. `status` is as `os.waitpid` returns it."""

    status: int
    output: bytes
    error: bytes
    value: bytes | None
    seconds: float


class Interpreter:
    """An interpreter, which the constructor starts; call `wait_ready` before use."""

    def __init__(self, command: Command) -> None:
        self._ours, theirs = socket.socketpair()
        self._ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._pid_file: int | None = None
        with theirs:
            self._process = _start(command, theirs)
        self.pid: int | None = None
        """Process id of the harness on the host; None until it is ready."""
        self._output_bytes = 0
        self._error_bytes = 0

    def wait_ready(self, deadline: float) -> None:
        """Waits until the harness is ready; the kernel reports its process id."""
        self._wait(deadline)
        data, ancillary, _, _ = self._ours.recvmsg(1, socket.CMSG_SPACE(CREDENTIALS.size))
        if data != b"R":
            raise Lost(f"the isolated interpreter ended at its start with code {self._process.poll()}")
        for level, kind, credentials in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                self.pid = CREDENTIALS.unpack(credentials)[0] or None
        if self.pid is not None and self._pid_file is None:
            try:
                self._pid_file = os.pidfd_open(self.pid)
            except ProcessLookupError as error:
                raise Lost("the isolated interpreter ended while it waited") from error
        self._refuse_early_words()

    def begin(self, program: str, prelude: str, function: str | None, limits: dict[str, int]) -> None:
        """Send the program; it does not run before the first test."""
        self._output_bytes, self._error_bytes = limits["output_bytes"], limits["error_bytes"]
        self._send({"program": program, "prelude": prelude, "function": function, "limits": limits})

    def run(self, stdin: bytes, arguments: Sequence[Any], deadline: float) -> Reply:
        """Run one test. Raises Late, or Lost if there is no reply or data arrived before the test."""
        self._refuse_early_words()
        started = time.monotonic()
        self._send({"stdin": stdin, "arguments": list(arguments)})
        status, *sizes = struct.unpack("!4I", self._read(16, deadline))
        sizes[2] = 0 if sizes[2] == NO_VALUE else sizes[2]
        limits = (self._output_bytes + 1, self._error_bytes, self._output_bytes + 1)
        if any(size > limit for size, limit in zip(sizes, limits, strict=True)):
            raise Lost(f"a reply of {sizes} bytes, more than {limits}")
        output, error, value = (self._read(size, deadline) for size in sizes)
        return Reply(status, output, error, value or None, time.monotonic() - started)

    def kill(self) -> None:
        """End all processes of the sandbox and wait until they are gone; the death of the namespace's first process
        ends all others."""
        if self._pid_file is None and self._process.poll() is None:
            self._finish_start()
        if self._pid_file is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pid_file, signal.SIGKILL)
            _poll(self._pid_file, END_S)  # readable once the process and its namespace have ended
            os.close(self._pid_file)
            self._pid_file = None
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)  # it reaps its child and ends by itself
        self._process.kill()
        self._process.wait(END_S)
        self._ours.close()

    def _finish_start(self) -> None:
        """Wait briefly for an interpreter that is still starting, so that its first process is known.

        If bwrap is killed while it sets up the sandbox, its child waits for it forever. So if the interpreter is still
        not ready after the wait, the children of bwrap are killed; `kill` then kills bwrap.
        """
        with contextlib.suppress(Late, Lost):
            self.wait_ready(time.monotonic() + SETUP_S)
            return
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        with contextlib.suppress(OSError):  # bwrap or one of its children may end meanwhile
            for pid in children.read_text().split():
                os.kill(int(pid), signal.SIGKILL)

    def _refuse_early_words(self) -> None:
        self._ours.setblocking(False)
        try:
            words = self._ours.recv(1)
        except BlockingIOError:
            return
        raise Lost("it spoke before it was asked" if words else "it ended between two tests")

    def _send(self, message: dict[str, Any]) -> None:
        data = marshal.dumps(message)
        self._ours.settimeout(END_S)  # enough: the harness only reads meanwhile
        try:
            self._ours.sendall(len(data).to_bytes(4, "big") + data)
        except OSError as error:
            raise Lost(f"it takes no test: {error}") from error

    def _read(self, count: int, deadline: float) -> bytes:
        parts = []
        while count:
            self._wait(deadline)
            try:
                part = self._ours.recv(min(count, 1 << 20))
            except ConnectionResetError as error:
                raise Lost("it ended") from error
            if not part:
                raise Lost("it ended")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def _wait(self, deadline: float) -> None:
        if not _poll(self._ours.fileno(), deadline - time.monotonic()):
            raise Late


def _start(command: Command, channel: socket.socket) -> subprocess.Popen[bytes]:
    passed = [os.open(command.filter_file, os.O_RDONLY)] if command.filter_file else []
    identity: dict[str, Any] = dict(command.identity)
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


def _poll(file: int, timeout_s: float) -> bool:
    """Whether `file` becomes readable in time (poll rather than select, because the descriptor may exceed 1024)."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(max(0.0, timeout_s) * 1000))


def read_value(data: bytes) -> Any:
    """A call's value as plain data. Raises ValueError if the text is not JSON, too deeply nested, or has a too long
    number."""
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
