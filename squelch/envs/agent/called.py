"""An agent as an async function: one long-lived process (`host.py`) plays many trajectories with it.

| waits for | unblocked by | bound, and what then |
|---|---|---|
| the process's first frame | its imports | `START_S`; it is ended |
| a trajectory's value | the function; the process's end | the caller's |
| the end of a cancelled trajectory | the function | `CANCEL_S`; the process ends after its other trajectories |

Invariants:

- A trajectory that is known to have blocked or ended the process fails, and only that one. The others are interrupted,
  and so are all of them where several may be to blame. Each begins again in a process of its own (`environment.py`),
  so that the one to blame fails alone.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from squelch.envs.agent.ending import AgentEnded
from squelch.envs.agent.environment_variables import hidden, of_python, shared
from squelch.envs.agent.host import BLOCKED, HEAD, MAX_FRAME
from squelch.envs.agent.kept import Kept
from squelch.envs.contract import Access, AgentFailed, AgentInterrupted
from squelch.kit.untrusted.files import shortened
from squelch.kit.untrusted.secrets import masked

START_S = 75.0
"""Seconds for the start of the process, above `host.START_S`."""
CANCEL_S = 10.0
GONE_S = 3.0
"""Seconds for the end of a process that has closed its socket."""
_HOST = str(Path(__file__).with_name("host.py"))


@dataclass(frozen=True)
class Target:
    """What a process plays trajectories with. `call`: `module:function` or `file.py:function`; `python`: the
    interpreter, empty for the run's own."""

    call: str
    python: str = ""
    blocked_s: float = 30.0
    memory_gib: float | None = None

    @property
    def interpreter(self) -> str:
        """The interpreter's path or name."""
        return self.python or sys.executable

    @property
    def function(self) -> str:
        """`call` as the interpreter finds it: in another Python, a module of ours by its file."""
        source, _, name = self.call.rpartition(":")
        if self.python and source.startswith("squelch.") and (spec := importlib.util.find_spec(source)):
            return f"{spec.origin}:{name}"
        return self.call


@lru_cache(maxsize=64)
def check_call(target: Target) -> None:
    """Tries the import in a process of its own. Raises ValueError if it fails."""
    if shutil.which(target.interpreter, path=shared()["PATH"]) is None:
        raise ValueError(f"environment.options.python: there is no program {target.python!r}; give its path")
    command = [target.interpreter, _HOST, target.function]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=of_python(target.python),
            timeout=START_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"environment.options.call: the import of {target.call} took over {START_S:g} s") from None
    if done.returncode:
        errors = done.stderr.decode(errors="replace")
        why = _marked(errors).get("failed") or f"the import ended its process: {shortened(errors.strip()[-300:], 300)}"
        raise ValueError(f"environment.options.call: {masked(str(why))}")


@dataclass
class _Played:
    """A trajectory that the process has. `access`: whose token no message may show."""

    value: asyncio.Future[Any]
    access: Access


@dataclass
class Host:
    """One process, started at once. Use it in one event loop."""

    target: Target
    lost: bool = False
    """Whether the process has ended, or ends."""
    retired: bool = False
    """Whether it gets no more trajectories."""
    _played: dict[int, _Played] = field(default_factory=dict)
    _cancelled: set[int] = field(default_factory=set)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self._channel, theirs = socket.socketpair()
        command = [self.target.interpreter, _HOST, self.target.function, repr(self.target.blocked_s)]
        with theirs:
            self._kept = Kept(command, of_python(self.target.python), theirs.fileno(), self.target.memory_gib)
        self._ready: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
        self._failed = ""
        self._serving = asyncio.create_task(self._serve())

    async def play(self, task: Mapping[str, Any], access: Access) -> Any:
        """What the function returns. Raises AgentFailed, or AgentInterrupted."""
        number = next(self._numbers)
        value: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._played[number] = _Played(value, access)
        try:
            await asyncio.wait([self._ready, value], return_when=asyncio.FIRST_COMPLETED)
            if not value.done():
                call = {"id": number, "task": task, "base_url": access.base_url, "token": access.token}
                self._ready.result().write(_framed(call))
            return await value
        except asyncio.CancelledError:
            self._cancel(number)
            raise
        finally:
            self._played.pop(number, None)
            self._end_if_left()

    async def close(self) -> None:
        """Ends the process. Trajectories that it has are interrupted."""
        await self._kept.close()
        await asyncio.wait([self._serving], timeout=GONE_S)

    def _cancel(self, number: int) -> None:
        if not self._ready.done() or self.lost:
            return
        self._cancelled.add(number)
        self._ready.result().write(_framed({"cancel": number}))
        asyncio.get_running_loop().call_later(CANCEL_S, self._require_ended, number)

    def _require_ended(self, number: int) -> None:
        if number in self._cancelled:
            self.retired = True
            self._end_if_left()

    def _end_if_left(self) -> None:
        """Ends a retired process without trajectories; its end is not waited for."""
        if self.retired and not self._played and not self.lost:
            self._channel_closed()

    def _channel_closed(self) -> None:
        self.lost = True
        if self._ready.done():
            self._ready.result().close()

    async def _serve(self) -> None:
        """Delivers the process's frames until it ends, and then says so to every trajectory that it had."""
        reading, ending = asyncio.create_task(self._read()), asyncio.create_task(self._kept.ended())
        try:
            await asyncio.wait([reading, ending], return_when=asyncio.FIRST_COMPLETED)
            self.lost = True
            await asyncio.wait([ending], timeout=GONE_S)
            await self._kept.close()
            self._lose(await ending)
        finally:
            self.lost = True
            reading.cancel()
            ending.cancel()

    async def _read(self) -> None:
        reader, writer = await asyncio.open_connection(sock=self._channel)
        try:
            async with asyncio.timeout(START_S):
                first = await _frame(reader)
            self._failed = str(first.get("failed", ""))
            if not self._failed:
                self._ready.set_result(writer)
                while True:
                    self._deliver(await _frame(reader))
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError, ValueError):
            return  # `_serve` finds out how the process ended
        finally:
            writer.close()

    def _deliver(self, frame: dict[str, Any]) -> None:
        number = frame["id"]
        self._cancelled.discard(number)
        played = self._played.get(number)
        if played is None or played.value.done():
            return
        if "value" in frame:
            played.value.set_result(frame["value"])
        else:
            text = f"the agent's function raised {frame.get('error', 'CancelledError')}"
            played.value.set_exception(AgentEnded(hidden(text, played.access), frame.get("kinds", ())))

    def _lose(self, how: str) -> None:
        """Tells every trajectory that the process has ended. `how`: in words."""
        errors = self._kept.errors.written.decode(errors="replace")
        found, blocked = _marked(errors), BLOCKED in errors or "Timeout (" in errors
        waiting = {number: one for number, one in self._played.items() if not one.value.done()}
        for number, one in waiting.items():
            one.value.set_exception(self._reason(number, one, found, blocked, how, alone=len(waiting) == 1))

    def _reason(
        self, number: int, one: _Played, found: Mapping[str, Any], blocked: bool, how: str, alone: bool
    ) -> Exception:
        if self._failed or not self._ready.done():
            why = self._failed or f"its process {how or 'ended'} before it was ready{self._kept.last_output()}"
            return AgentFailed(hidden(f"environment.options.call: {why}", one.access))
        known = found.get("id")
        if number == known or (alone and blocked):
            place = f" ({found['where']})" if found.get("where") else ""
            return AgentFailed(
                f"the agent's function blocked the event loop of its process for {self.target.blocked_s:g} s{place}; "
                "it must await, or call in a thread (asyncio.to_thread)"
            )
        if known is not None:
            return AgentInterrupted("another trajectory blocked the process")
        if alone:
            return AgentFailed(hidden(f"the agent's process {how or 'ended'}{self._kept.last_output()}", one.access))
        return AgentInterrupted(f"the process of {len(self._played)} trajectories {how or 'ended'}")


_HOSTS: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Target, Host]] = WeakKeyDictionary()


def shared_host(target: Target) -> Host:
    """The process of a target that takes trajectories, shared within this event loop."""
    hosts = _HOSTS.setdefault(asyncio.get_running_loop(), {})
    if target not in hosts or hosts[target].lost or hosts[target].retired:
        hosts[target] = Host(target)
    return hosts[target]


async def close_hosts() -> None:
    """Ends the processes of this event loop."""
    hosts = _HOSTS.pop(asyncio.get_running_loop(), {})
    await asyncio.gather(*(host.close() for host in hosts.values()))


def _marked(errors: str) -> dict[str, Any]:
    """What the process itself said of its end; empty if nothing."""
    lines = [line for line in errors.splitlines() if line.startswith(BLOCKED)]
    with suppress(ValueError):
        found = json.loads(lines[-1].removeprefix(BLOCKED)) if lines else {}
        return found if isinstance(found, dict) else {}
    return {}


def _framed(message: Mapping[str, Any]) -> bytes:
    body = json.dumps(message).encode()
    return len(body).to_bytes(HEAD, "big") + body


async def _frame(reader: asyncio.StreamReader) -> dict[str, Any]:
    """The next frame. Raises IncompleteReadError at the end, and ValueError for one that is too long or no object."""
    size = int.from_bytes(await reader.readexactly(HEAD), "big")
    if size > MAX_FRAME:
        raise ValueError(f"a frame of {size} bytes")
    found = json.loads(await reader.readexactly(size))
    if not isinstance(found, dict):
        raise ValueError("a frame that is no object")
    return found
