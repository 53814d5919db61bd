"""One isolated interpreter, controlled from outside: it is started, receives one program, runs its tests, and is
killed.

Invariants: an interpreter runs one program and is never reused. Its replies are data of bounded size, which are neither
executed nor unpickled. Its owner kills it; in the isolating back ends it also ends if this process dies.

`wait_ready` waits for the interpreter until its deadline, `run` until the test's own time (`own_time`) is used up; then
they raise `Late`.
"""

from __future__ import annotations

import contextlib
import json
import marshal
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from squelch.envs.sandbox.own_time import OwnTime
from squelch.envs.sandbox.starters import END_S, Starter, readable
from squelch.kit.base import frames

NO_VALUE = 0xFFFFFFFF
CREDENTIALS = struct.Struct("3i")
SETUP_S = 1.0
REST_S = 2.0
"""Seconds in which the rest of a reply must come; the harness sends it after the program's end."""
LONGEST_REASON = 500


class Late(Exception):
    """The interpreter did not reply in time. `seconds`: how much of the test's own time was used."""

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__()
        self.seconds = seconds


class Lost(Exception):
    """The interpreter ended, or sent data before it was asked."""


@dataclass(frozen=True)
class Reply:
    """A program's output after one test. `status` is as `os.waitpid` returns it, `seconds` are of its own time."""

    status: int
    output: bytes
    error: bytes
    value: bytes | None
    seconds: float


class Interpreter:
    """An interpreter, which the constructor starts; call `wait_ready` before use. `generation`: how often the image had
    changed when it was started."""

    def __init__(self, starter: Starter, generation: int = 0) -> None:
        self.generation = generation
        self.pid: int | None = None
        """Process id of the harness on the host; None until it is ready."""
        self._ours, theirs = socket.socketpair()
        self._ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        with theirs:
            try:
                self.process = starter.start(theirs)
            except BaseException:
                self._ours.close()
                raise
        self._output_bytes = 0
        self._error_bytes = 0

    def wait_ready(self, deadline: float) -> None:
        """Waits until the harness is ready; the kernel reports its process id."""
        self._wait(deadline)
        data, ancillary, _, _ = self._ours.recvmsg(1, socket.CMSG_SPACE(CREDENTIALS.size))
        if data != b"R":
            raise Lost(f"the isolated interpreter ended at its start: {self._last_words()}")
        for level, kind, credentials in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                self.pid = CREDENTIALS.unpack(credentials)[0] or None
        try:
            self.process.found(self.pid)
        except ProcessLookupError as error:
            raise Lost("the isolated interpreter ended while it waited") from error
        self._refuse_early_words()

    def begin(self, program: str, prelude: str, function: str | None, limits: dict[str, int]) -> None:
        """Send the program; it does not run before the first test."""
        self._output_bytes, self._error_bytes = limits["output_bytes"], limits["error_bytes"]
        self._send({"program": program, "prelude": prelude, "function": function, "limits": limits})

    def run(self, stdin: bytes, arguments: Sequence[Any], limit_s: float) -> Reply:
        """Run one test of at most `limit_s` seconds. Raises Late, or Lost if there is no reply or data arrived before
        the test."""
        self._refuse_early_words()
        own = OwnTime(self.pid, limit_s)
        self._send({"stdin": stdin, "arguments": list(arguments)})
        while not readable(self._ours.fileno(), own.next_look_s):
            if own.is_over():
                raise Late(own.used_s)
        seconds, deadline = own.used_s, time.monotonic() + REST_S
        status, *sizes = struct.unpack("!4I", self._read(16, deadline))
        sizes[2] = 0 if sizes[2] == NO_VALUE else sizes[2]
        limits = (self._output_bytes + 1, self._error_bytes, self._output_bytes + 1)
        if any(size > limit for size, limit in zip(sizes, limits, strict=True)):
            raise Lost(f"a reply of {sizes} bytes, more than {limits}")
        output, error, value = (self._read(size, deadline) for size in sizes)
        return Reply(status, output, error, value or None, seconds)

    def kill(self) -> None:
        """End all processes of the sandbox and wait until they are gone."""
        if not self.process.known:  # wait briefly, so that its first process, whose death ends the others, is known
            with contextlib.suppress(Late, Lost):
                self.wait_ready(time.monotonic() + SETUP_S)
        self.process.kill()
        self._ours.close()

    def _last_words(self) -> str:
        self._ours.settimeout(SETUP_S)
        with contextlib.suppress(OSError):
            return self._ours.recv(LONGEST_REASON).decode("utf-8", "replace") or "no reason given"
        return "no reason given"

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
            frames.send(self._ours, data)
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
        if not readable(self._ours.fileno(), deadline - time.monotonic()):
            raise Late


def read_value(data: bytes) -> Any:
    """A call's value as plain data. Raises ValueError if the text is not JSON in ASCII, too deeply nested, or has a too
    long number. (`json` would also take bytes in UTF-16 and UTF-32, which the harness never writes.)"""
    try:
        return json.loads(data.decode("ascii"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
