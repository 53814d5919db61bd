"""The parent of a process that holds environments: it starts the process, calls it, and ends it when it hangs.

| waits for | unblocked by | bound, and what then |
|---|---|---|
| the process, at its first call | its imports | `START_S` beside the call's own time; ProcessLost |
| a call | the environment; the child's watchdog | `timeout_s`, then the process is ended; TimedOut |
| another environment's call | the lock of the process | that call's own bound |

Invariants:

- At most one call is under way in a process. A call that fails with an error leaves the process alive.
- A call that hangs, or that ends the process, fails alone. The other environments of the process are recreated in its
  successor, and their actions since the last reset are replayed, before their next call. An environment that does
  not answer as before fails instead (`ProcessLost`).
- The successor of an ended process is started at once, so that its imports do not delay the next call more than needed.
- What the environments print is kept, up to `TAIL` characters, and becomes part of the reason if the process ends.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from squelch.envs.wording import PromptName
from squelch.kit.base import frames
from squelch.kit.untrusted.files import MIB, shortened, size_text

START_S = 60.0
"""Seconds for the start of the process, up to its first answer, besides the time of the call."""
WATCHDOG_S = 2.0
"""Seconds that the parent leaves to the child's watchdog, whose traceback says where the call hangs."""
MAX_REPLY = 16 * MIB
TAIL = 4000
MAX_REASON = 300
_CHILD = (sys.executable, "-s", "-P", str(Path(__file__).with_name("child.py")))
_FIXED = {"PYTHONHASHSEED": "0", "PYTHONPATH": "", "PYTHONUNBUFFERED": ""}
"""Variables of the process. The order of a set of texts follows from the hash seed, and some environments draw from
sets."""
_LAST_FRAME = re.compile(r'File "([^"]*)", line (\d+) in (\S+)')


class ProcessLost(RuntimeError):
    """The process ended during the call, or the environment could not be made again in its successor."""


class TimedOut(RuntimeError):
    """The call did not return in time."""


class CallError(RuntimeError):
    """The environment raised an error; `kind` is the name of its class."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {shortened(text, MAX_REASON)}" if text else kind)
        self.kind, self.text = kind, text


@dataclass(frozen=True)
class Target:
    """Target of a process: the class `package.module:Class` that makes its environments."""

    path: str
    timeout_s: float
    """Most seconds of one call."""
    memory_bytes: int
    """Most bytes of address space of the process."""
    number: int = 0
    """The number distinguishes the processes of one target."""
    folder: str = field(default_factory=os.getcwd)
    """The process's working folder, from which its relative paths begin."""


@dataclass(frozen=True)
class Call:
    """One call, and what it returned."""

    method: str
    arguments: tuple[Any, ...]
    value: Any = None


class _Child:
    """One started process."""

    def __init__(self, target: Target) -> None:
        self._target = target
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                _CHILD,
                stdin=theirs.fileno(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that Ctrl-C at the terminal does not reach it
                env={"OMP_NUM_THREADS": "1", **os.environ, **_FIXED},
                cwd=target.folder,
            )
        self.channel = ours
        self.is_ready = False
        self._tail = ""
        self._reader = threading.Thread(
            target=self._drain, args=(self.process.stdout,), daemon=True, name="own-process"
        )
        self._reader.start()
        path = [str(Path(part).absolute()) for part in sys.path]
        self.send({"path": path, "target": target.path, "memory_bytes": target.memory_bytes, "start_s": START_S})

    def send(self, message: dict[str, Any]) -> None:
        """Raises OSError if the process is gone or does not read."""
        self.channel.settimeout(self._target.timeout_s)
        frames.send(self.channel, json.dumps(message).encode())

    def end(self) -> str:
        """Ends the process and all that it started; returns the end of what it wrote."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.channel.close()
        self._reader.join(1.0)  # a process that left the session may hold the pipe open
        return self._tail

    def _drain(self, pipe: IO[bytes]) -> None:
        while written := os.read(pipe.fileno(), 1 << 16):
            self._tail = (self._tail + written.decode(errors="replace"))[-TAIL:]
        pipe.close()


class EnvironmentProcess:
    """A process that is started when needed, also after it has ended. May be shared between threads."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.lock = threading.RLock()
        self.generation = 0
        """Number of processes started so far."""
        self._child: _Child | None = None
        self._forgotten: list[str] = []
        atexit.register(self.close)

    def start(self) -> None:
        """Starts the process without waiting for it; nothing happens if it runs."""
        with self.lock:
            if self._child is None:
                self._child = _Child(self.target)
                self.generation += 1

    def exchange(self, environment: str, method: str, arguments: tuple[Any, ...]) -> Any:
        """The value of one call; the caller holds `lock`. Raises CallError, TimedOut or ProcessLost."""
        self.start()
        child, bound = self._child, self.target.timeout_s
        assert child is not None
        forgotten, self._forgotten = self._forgotten, []
        begins = START_S if not child.is_ready else 0.0
        call = {"environment": environment, "method": method, "arguments": arguments, "forget": forgotten}
        try:
            child.send({**call, "timeout_s": bound + begins})
            reply = frames.receive(child.channel, MAX_REPLY, time.monotonic() + bound + begins + WATCHDOG_S)
        except TimeoutError:
            raise self._end(method, late=True) from None
        except frames.Oversize:
            self._end(method)
            raise ProcessLost(f"the environment answered {method}() with more than {size_text(MAX_REPLY)}") from None
        except (OSError, EOFError):
            raise self._end(method) from None
        child.is_ready = True
        answer = json.loads(reply)
        if "error" in answer:
            raise CallError(str(answer["error"]), str(answer["text"]))
        return answer["value"]

    def forget(self, environment: str) -> None:
        """Drops an environment with the next call."""
        self._forgotten.append(environment)

    def close(self) -> None:
        """Ends the process; a later call starts another one."""
        with self.lock:
            if self._child is not None:
                self._child.end()
                self._child = None

    def _end(self, method: str, late: bool = False) -> RuntimeError:
        """Ends the process and starts its successor; returns the error of the call that is the reason."""
        child, self._child = self._child, None
        assert child is not None
        tail, status = child.end(), child.process.returncode
        self.start()
        if late or "Timeout (" in tail:
            where = _LAST_FRAME.search(tail.rpartition("Timeout (")[2])
            place = f" (it was in {Path(where[1]).name}, line {where[2]}, {where[3]})" if where else ""
            message = f"{method}() did not return within {self.target.timeout_s:g} s{place}; its process was ended"
            return TimedOut(message)
        lines = [line for line in tail.splitlines() if line.strip()]
        last = f"; it last wrote: {shortened(lines[-1].strip(), MAX_REASON)}" if lines else ""
        return ProcessLost(f"the environment's process ended in {method}() with status {status}{last}")


class Session:
    """One environment in a process; it is made again, and brought to the same state, if the process has ended."""

    def __init__(
        self,
        process: EnvironmentProcess,
        split: str,
        options: dict[str, Any],
        prompt: PromptName = "tiny",
        first_seed: int = 0,
    ) -> None:
        self._process = process
        self._name = f"environment-{next(_NUMBERS)}"
        self._make = Call("make", (split, options, prompt, first_seed))
        self._history: list[Call] = []
        self._generation = 0
        weakref.finalize(self, process.forget, self._name)

    def make(self) -> None:
        """Makes the environment, before any other call."""
        with self._process.lock:
            self._make = Call(self._make.method, self._make.arguments, self._exchange(self._make))
            self._generation = self._process.generation

    @property
    def facts(self) -> list[Any]:
        """What the environment was when it was made: the value of `make` in the head of `child`."""
        return self._make.value

    def reset(self, seed: int, noise_seed: int) -> list[Any]:
        """Starts a task; what was played before is forgotten."""
        self._history = []
        return self._played("reset", seed, noise_seed)

    def step(self, action: str) -> list[Any]:
        """Plays an action."""
        return self._played("step", action)

    def _played(self, method: str, *arguments: Any) -> Any:
        value = self.ask(method, *arguments)
        self._history.append(Call(method, arguments, value))
        return value

    def ask(self, method: str, *arguments: Any) -> Any:
        """The value of a call; a successor of the process repeats only those of `_played`."""
        with self._process.lock:
            self._process.start()
            if self._generation != self._process.generation:
                self._restore()
            return self._exchange(Call(method, arguments))

    def _restore(self) -> None:
        for number, call in enumerate((self._make, *self._history)):
            if self._exchange(call) != call.value:
                what = f"call {number}, {call.method}()" if number else "its rules"
                raise ProcessLost(
                    f"the environment's process had ended, and when its calls were replayed {what} answered differently"
                )
        self._generation = self._process.generation

    def _exchange(self, call: Call) -> Any:
        return self._process.exchange(self._name, call.method, call.arguments)


_NUMBERS = itertools.count()


@lru_cache(maxsize=64)
def shared_process(target: Target) -> EnvironmentProcess:
    """The process of a target, shared within this process."""
    return EnvironmentProcess(target)
