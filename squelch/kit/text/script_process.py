"""Runs a script of this folder in a process of its own, with bounded memory and CPU time and without this process's
environment: a template or a tokenizer is a program of the model folder's author.

| the script | is started by | bounds of CPU time |
|---|---|---|
| answers one request | `answer_of`, each time | of the process |
| answers one request after another | `Answering`, at its first request | of each request |

Both kinds set their bounds themselves. Longest wait for an answer: `WAIT_S`, then the process is ended. A request to an
`Answering` process first waits for those before it, at most `WAIT_S` too.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import dataclass

from squelch.kit.base.frames import receive, send

WAIT_S = 300.0
"""Longest wait for an answer; the process ends itself after its bound of CPU time: a loaded machine makes that long."""
GONE_S = 5.0
"""Longest wait for the end of a process that has closed its socket."""
MOST_BYTES = 2**28
"""Most bytes of the answer of an `Answering` process."""
_KEPT_VARIABLES = ("LD_LIBRARY_PATH", "TZ")
"""Environment variables of the child process: what the interpreter and a template's date need."""


@dataclass(frozen=True)
class Broken:
    """Why there is no answer."""

    reason: str
    by_chance: bool = False
    """Whether the machine's load decided, so that another trial may have an answer."""


def answer_of(script: str, request: bytes, memory_bytes: int, cpu_s: int) -> bytes | Broken:
    """What the script writes to its standard output, from `request` at its standard input. Its arguments are the
    bounds, which it sets for itself."""
    command = _command(script, memory_bytes, cpu_s)
    try:
        done = subprocess.run(
            command, input=request, capture_output=True, timeout=WAIT_S, env=_variables(), cwd="/", check=False
        )
    except subprocess.TimeoutExpired:
        return _late()
    if done.returncode == 0:
        return done.stdout
    return _broken(done.returncode, cpu_s, done.stderr.decode(errors="replace").strip().rpartition("\n")[2][:200])


@dataclass(frozen=True)
class _Process:
    """A running process, and our end of its standard input and output. `owner`: the process that started it, whose
    forks leave it alone."""

    process: subprocess.Popen[bytes]
    channel: socket.socket
    owner: int

    def end(self) -> None:
        """Ends the process at once."""
        if self.owner == os.getpid():
            self.channel.close()
            self.process.kill()
            self.process.wait()

    def exit_code(self) -> int:
        """The exit code of a process that has closed its socket; it is ended if it goes on."""
        try:
            return self.process.wait(GONE_S)
        except subprocess.TimeoutExpired:
            self.end()
            return self.process.returncode


class Answering:
    """A process of a script that answers one request after another; started at the first one, and replaced once it has
    ended, by itself or because a request broke its bounds. Any thread may ask; it waits for the requests before its
    own, and another request's breach costs it nothing but time."""

    def __init__(self, script: str, memory_bytes: int, cpu_s: int) -> None:
        self._command, self._cpu_s = _command(script, memory_bytes, cpu_s), cpu_s
        self._turn = threading.Lock()
        self._running: _Process | None = None

    def answer_of(self, request: bytes) -> bytes | Broken:
        """The answer to a request."""
        if not self._turn.acquire(timeout=WAIT_S):
            return _late()
        try:
            found = self._asked(request)
            # it may have ended by itself before it took the request, or the machine may have ended it
            again = isinstance(found, Broken) and found.by_chance and found != _late()
            return self._asked(request) if again else found
        finally:
            self._turn.release()

    def _asked(self, request: bytes) -> bytes | Broken:
        running = self._running
        if running is None or running.owner != os.getpid():
            running = self._started()
        answer = None
        try:
            answer = _answered(running.channel, request)
            return answer
        except TimeoutError:
            return _late()
        except (OSError, EOFError):
            return _broken(running.exit_code(), self._cpu_s)
        finally:
            if answer is None:  # whatever it has written would be read as the answer to the next request
                self._running = None
                self._ending()

    def _started(self) -> _Process:
        ours, theirs = socket.socketpair()
        with theirs:
            end = theirs.fileno()
            process = subprocess.Popen(
                self._command, stdin=end, stdout=end, stderr=subprocess.DEVNULL, env=_variables(), cwd="/"
            )
        self._running = _Process(process, ours, os.getpid())
        self._ending = weakref.finalize(self, self._running.end)
        return self._running


def _answered(channel: socket.socket, request: bytes) -> bytes:
    """The answer. Raises TimeoutError after `WAIT_S`, and OSError or EOFError if the process is gone or answers too
    much."""
    until = time.monotonic() + WAIT_S
    channel.settimeout(WAIT_S)
    send(channel, request)
    return receive(channel, MOST_BYTES, until)


def _command(script: str, memory_bytes: int, cpu_s: int) -> list[str]:
    return [sys.executable, "-I", script, str(memory_bytes), str(cpu_s)]


def _variables() -> dict[str, str]:
    return {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}


def _late() -> Broken:
    return Broken(f"no answer within {WAIT_S:g} s", by_chance=True)


def _broken(code: int, cpu_s: int, said: str = "") -> Broken:
    """Why a process with this exit code has no answer. `said`: the last line of its standard error."""
    if code == -signal.SIGXCPU:
        return Broken(f"it takes more than {cpu_s} s")
    reason = said or (f"signal {-code}" if code < 0 else f"exit code {code}")
    return Broken(f"its process ended with {reason}", by_chance=code in (0, -signal.SIGKILL))
