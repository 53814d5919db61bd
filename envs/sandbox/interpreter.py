"""One isolated interpreter, seen from outside: started, given one program, asked test by test, killed.

Invariants: it runs one program and is never used for another. What it replies is data of bounded size; nothing of it is
executed or unpickled. Whoever holds it kills it; our own death kills it too, in the isolating back ends.

Who waits: `wait_ready`, `run`: for the interpreter, at most until their deadline, then `Late` names what was late.
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
END_S = 5.0  # within which a killed process must be gone


class Late(Exception):
    """The interpreter did not reply by the deadline."""


class Lost(Exception):
    """The interpreter ended, or spoke out of turn."""


@dataclass(frozen=True)
class Command:
    """How an interpreter is started. `identity` holds subprocess's user, group and extra_groups where they change."""

    arguments: tuple[str, ...]
    identity: tuple[tuple[str, Any], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    filter_file: str | None = None
    """Opened for each start; its descriptor replaces `FILTER` in the arguments."""


FILTER = "{filter}"


@dataclass(frozen=True)
class Reply:
    """What a program left behind after one test. `status` is as `os.waitpid` gives it."""

    status: int
    output: bytes
    error: bytes
    value: bytes | None
    seconds: float


class Interpreter:
    """Starts at once; `wait_ready` before use."""

    def __init__(self, command: Command) -> None:
        self._ours, theirs = socket.socketpair()
        self._ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._pid_file: int | None = None
        with theirs:
            self._process = _start(command, theirs)
        self.pid: int | None = None
        """The harness's process as the host numbers it, once ready."""
        self._output_bytes = 0
        self._error_bytes = 0

    def wait_ready(self, deadline: float) -> None:
        """Until the harness speaks; the kernel says which process that is."""
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
        """Hand over the program; nothing of it runs before the first test."""
        self._output_bytes, self._error_bytes = limits["output_bytes"], limits["error_bytes"]
        self._send({"program": program, "prelude": prelude, "function": function, "limits": limits})

    def run(self, stdin: bytes, arguments: Sequence[Any], deadline: float) -> Reply:
        """One test. Raises Late, or Lost when there is no reply or one before the question."""
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
        """End all processes of the sandbox (the first of its namespace takes all along); returns when they are gone."""
        if self._pid_file is None and self._process.poll() is None:
            self._finish_start()
        if self._pid_file is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pid_file, signal.SIGKILL)
            _poll(self._pid_file, END_S)  # readable once the process has ended, and its namespace with it
            os.close(self._pid_file)
            self._pid_file = None
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)  # it ends by itself, having reaped its child
        self._process.kill()
        self._process.wait(END_S)
        self._ours.close()

    def _finish_start(self) -> None:
        """Give one that is just starting a moment to be ready, so that its first process is known.

        bwrap killed while it sets the sandbox up leaves a child that waits for it without end; so where the moment is
        not enough, its children are killed before it is.
        """
        with contextlib.suppress(Late, Lost):
            self.wait_ready(time.monotonic() + SETUP_S)
            return
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        with contextlib.suppress(OSError):  # it, or a child of it, may end meanwhile
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
        self._ours.settimeout(END_S)  # the harness reads as fast as it can, and runs nothing else meanwhile
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
    """Whether there is something to read within the time (poll, not select: the descriptor may be above 1024)."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(max(0.0, timeout_s) * 1000))


def read_value(data: bytes) -> Any:
    """A call's value as plain data; ValueError when it is not such text (too deep, too long a number, no JSON)."""
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
