"""The process in which an agent's async function plays many trajectories; `envs.agent.called` starts it as a script,
with any Python from 3.9 on, in which Squelch need not be installed.

    host.py CALL BLOCKED_S        serves trajectories on descriptor 0, a stream socket
    host.py CALL                  only tries to import the function

Both directions carry frames: 4 bytes of length, then JSON. The first frame to the parent is `{"ready": true}`, or
`{"failed": why}`, after which the process ends. Then

| to the process | from it |
|---|---|
| `{"id", "task", "base_url", "token"}` | `{"id", "value"}`, or `{"id", "error", "kinds"}` (its classes) |
| `{"cancel": id}` | `{"id", "ended"}` |

Invariants: the import runs for at most `START_S`. If the event loop stands still for `BLOCKED_S`, a thread writes one
line with the trajectory that blocks it and the place to standard error, and ends the process; where the interpreter's
lock is held, faulthandler does that `GRACE_S` later, without the trajectory. The process ends when the socket does.
"""

import asyncio
import faulthandler
import importlib
import importlib.util
import inspect
import json
import os
import socket
import sys
import threading
import time
import traceback
from functools import cached_property
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HEAD = 4
MAX_FRAME = 2**24
START_S, GRACE_S, BEAT_S = 60.0, 5.0, 0.2
POOLS: "dict[str, Any]" = {}
"""The connections of all trajectories, by package: opening a pool costs more than a call."""
MOST_KINDS = 32
BLOCKED = "squelch-agent-blocked "
"""Begins the line of the thread that watches."""


class Client:
    """The policy, for one trajectory: `openai_base_url` for OpenAI's clients, `base_url` for Anthropic's, `api_key` for
    both. `openai` and `anthropic` are asynchronous clients of these packages, made when they are asked for."""

    def __init__(self, base_url: str, api_key: str) -> None:
        self.base_url, self.api_key = base_url, api_key
        self.openai_base_url = f"{base_url}/v1"

    @cached_property
    def openai(self) -> "Any":
        """An `openai.AsyncOpenAI`."""
        package = importlib.import_module("openai")
        return package.AsyncOpenAI(base_url=self.openai_base_url, api_key=self.api_key, http_client=self._pool(package))

    @cached_property
    def anthropic(self) -> "Any":
        """An `anthropic.AsyncAnthropic`."""
        package = importlib.import_module("anthropic")
        return package.AsyncAnthropic(base_url=self.base_url, api_key=self.api_key, http_client=self._pool(package))

    def _pool(self, package: "Any") -> "Any":
        name = package.__name__
        if name not in POOLS:
            POOLS[name] = package.DefaultAsyncHttpxClient()
        return POOLS[name]


class Host:
    """Plays trajectories with a function."""

    def __init__(self, function: "Any", writer: asyncio.StreamWriter) -> None:
        self._function, self._writer = function, writer
        self._played: dict[int, asyncio.Task[None]] = {}

    def begin(self, call: "dict[str, Any]") -> None:
        """Begins a trajectory, or cancels one."""
        if "cancel" in call:
            if call["cancel"] in self._played:
                self._played[call["cancel"]].cancel()
            return
        number = call["id"]
        task = asyncio.get_running_loop().create_task(self._play(call), name=str(number))
        self._played[number] = task
        task.add_done_callback(lambda _: self._played.pop(number, None))

    async def _play(self, call: "dict[str, Any]") -> None:
        number = call["id"]
        try:
            value = await self._function(call["task"], Client(call["base_url"], call["token"]))
            answer = {"id": number, "value": value}
            frame = framed(answer)
        except asyncio.CancelledError:
            frame = framed({"id": number, "ended": True})
        except BaseException as error:  # of foreign code; SystemExit would end the process
            frame = framed({"id": number, "error": error_text(error), "kinds": kinds(error)})
        self._writer.write(frame)


async def serve(function: "Any", channel: socket.socket, blocked_s: float) -> None:
    """Serves trajectories until the socket ends."""
    reader, writer = await asyncio.open_connection(sock=channel)
    writer.write(framed({"ready": True}))
    host, beat = Host(function, writer), Beat(asyncio.get_running_loop(), blocked_s)
    beat.go_on()
    while True:
        try:
            head = await reader.readexactly(HEAD)
            host.begin(json.loads(await reader.readexactly(int.from_bytes(head, "big"))))
        except (asyncio.IncompleteReadError, ConnectionError):
            sys.stdout.flush()
            os._exit(0)  # a trajectory that goes on after its cancellation would hold up every other end


class Beat:
    """Ends the process if the event loop stands still."""

    def __init__(self, loop: asyncio.AbstractEventLoop, blocked_s: float) -> None:
        self._loop, self._blocked_s = loop, blocked_s
        self._thread, self._last = threading.get_ident(), time.monotonic()
        threading.Thread(target=self._watch, daemon=True, name="beat").start()

    def go_on(self) -> None:
        """Notes that the loop runs, again and again."""
        self._last = time.monotonic()
        faulthandler.dump_traceback_later(self._blocked_s + GRACE_S, exit=True)
        self._loop.call_later(BEAT_S, self.go_on)

    def _watch(self) -> None:
        while time.monotonic() - self._last < self._blocked_s:
            time.sleep(BEAT_S)
        task = asyncio.current_task(self._loop)
        name = task.get_name() if task is not None else ""
        frame = sys._current_frames().get(self._thread)
        where = place(traceback.extract_stack(frame)) if frame is not None else ""
        found = {"id": int(name) if name.isdigit() else None, "where": where}
        os.write(2, f"\n{BLOCKED}{json.dumps(found)}\n".encode())
        os._exit(1)


def place(frames: "list[traceback.FrameSummary]") -> str:
    """The innermost place that is neither in the standard library nor in an installed package."""
    stdlib = os.path.dirname(os.__file__)
    foreign = (stdlib, "<", __file__)
    own = [one for one in frames if not one.filename.startswith(foreign) and "-packages" not in one.filename]
    return f"{os.path.basename(own[-1].filename)}, line {own[-1].lineno}, {own[-1].name}" if own else ""


def error_text(error: BaseException) -> str:
    """The error in one line, with its place."""
    try:
        text = f"{type(error).__name__}: {error}"[:2000]
    except Exception:  # an error that cannot say its own text
        text = type(error).__name__
    text = plain(text)
    where = place(list(traceback.extract_tb(error.__traceback__)))
    return f"{text} ({where})" if where else text


def kinds(error: BaseException) -> "list[str]":
    """The names of its classes, the most special first, each with its module and without."""
    found = type(error).__mro__[:MOST_KINDS]
    return [plain(name) for one in found for name in (f"{one.__module__}.{one.__qualname__}", one.__name__)]


def plain(text: str) -> str:
    """The text without lone surrogates, which no frame holds."""
    return text.encode(errors="backslashreplace").decode()


def framed(message: "dict[str, Any]") -> bytes:
    """The frame of a message. ValueError or TypeError if it is no JSON, holds a lone surrogate, or is too long."""
    body = json.dumps(message, allow_nan=False, ensure_ascii=False).encode()
    if len(body) > MAX_FRAME:
        raise ValueError(f"the result has {len(body)} bytes, and {MAX_FRAME} are allowed")
    return len(body).to_bytes(HEAD, "big") + body


def found(call: str) -> "Any":
    """The function `module:function` or `file.py:function`. Raises ValueError for what is none."""
    source, _, name = call.rpartition(":")
    if not source or not name:
        raise ValueError(f"{call!r} names no function; give module:function or file.py:function")
    sys.path.insert(0, os.getcwd())  # a module beside the run is found, as with `python script.py`
    if source.endswith(".py"):
        path = Path(source).resolve()
        if not path.is_file():
            raise ValueError(f"there is no file {path}")
        sys.path.insert(0, str(path.parent))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(path.stem, module)
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(source)
    function = getattr(module, name, None)
    if not inspect.iscoroutinefunction(function):
        what = "no function" if not callable(function) else "no async function"
        raise ValueError(f"{source} defines {what} {name!r}; async def {name}(task, client) is needed")
    return function


def main(call: str, blocked_s: str = "") -> None:
    """Imports the function and, with `blocked_s`, serves trajectories."""
    sys.path.pop(0)  # the folder of this script, whose modules would hide others
    channel = socket.socket(fileno=os.dup(0)) if blocked_s else None
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    faulthandler.dump_traceback_later(START_S, exit=True)
    try:
        function = found(call)
    except BaseException as error:  # of foreign code, SystemExit included
        why = str(error) if isinstance(error, ValueError) else f"it cannot be imported: {error_text(error)}"
        if channel is None:
            sys.exit(f"{BLOCKED}{json.dumps({'failed': why})}")
        channel.sendall(framed({"failed": why}))
        return
    faulthandler.cancel_dump_traceback_later()
    if channel is not None:
        asyncio.run(serve(function, channel, float(blocked_s)))


if __name__ == "__main__":
    main(*sys.argv[1:])
