"""Calls between two processes over a socket, all calls of one tick of the event loop in one message.

    side       sends                        waits for          unblocked by                on the other's end
    `Client`   [(id, method, arguments)]    the answers        the server                  every call raises `Died`
    `serve`    [(id, succeeded, value)]     calls              the client, or its end      it returns

The client bounds its calls (`cluster.fleet.waiting`). Both processes are ours, so that messages are pickles.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import socket
from collections.abc import Callable
from typing import Any, Protocol

from squelch.cluster.control.actor_errors import Died, Failed

HEADER = 8
"""Bytes of a message's length."""


class _Outbox:
    """Items that are sent together at the end of the event loop's present tick."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._items: list[Any] = []

    def put(self, item: Any) -> None:
        if not self._items:
            asyncio.get_running_loop().call_soon(self._send)
        self._items.append(item)

    def _send(self) -> None:
        body = pickle.dumps(self._items, protocol=pickle.HIGHEST_PROTOCOL)
        self._items = []
        self._writer.write(len(body).to_bytes(HEADER, "big") + body)


async def _receive(reader: asyncio.StreamReader) -> list[Any]:
    size = int.from_bytes(await reader.readexactly(HEADER), "big")
    return pickle.loads(await reader.readexactly(size))


class Caller(Protocol):
    """Calls the methods of an object, wherever it is."""

    async def connect(self) -> None:
        """Must be awaited before the first call."""

    def call(self, method: str, *arguments: Any) -> asyncio.Future[Any]:
        """Calls an asynchronous method of the object."""
        ...

    def kill(self) -> None:
        """Ends the object's process, if it has one of its own."""


class Local:
    """Calls an object in this process."""

    def __init__(self, served: Any) -> None:
        self.served = served

    async def connect(self) -> None:
        """It is here."""

    def call(self, method: str, *arguments: Any) -> asyncio.Future[Any]:
        """Calls the method as a task."""
        return asyncio.ensure_future(getattr(self.served, method)(*arguments))

    def kill(self) -> None:
        """It has no process of its own."""


class Client:
    """A process that serves the object that `make(*arguments)` returns; `make` is a function of a module."""

    def __init__(self, make: Callable[..., Any], *arguments: Any) -> None:
        mine, theirs = socket.socketpair()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=_run, args=(theirs, make, arguments), daemon=True)
        self._process.start()
        theirs.close()
        self._socket = mine
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._next = 0

    @property
    def pid(self) -> int:
        """The process' id."""
        assert self._process.pid is not None, "started in __init__"
        return self._process.pid

    async def connect(self) -> None:
        """Starts to read answers; must be called before the first call, in the event loop of all calls."""
        reader, writer = await asyncio.open_connection(sock=self._socket)
        self._outbox = _Outbox(writer)
        self._reading = asyncio.create_task(self._read(reader))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                for number, succeeded, value in await _receive(reader):
                    self._answer(self._waiting.pop(number), succeeded, value)
        except (asyncio.IncompleteReadError, ConnectionError):
            for future in self._waiting.values():
                self._answer(future, False, None)

    def _answer(self, future: asyncio.Future[Any], succeeded: bool, value: Any) -> None:
        if future.done():  # cancelled
            return
        if succeeded:
            future.set_result(value)
        elif value is None:
            future.set_exception(Died("the process is gone"))
        else:
            future.set_exception(Failed(value, RuntimeError(value)))

    def call(self, method: str, *arguments: Any) -> asyncio.Future[Any]:
        """Calls a method; the result arrives in the future. Died if the process is gone, Failed with its error."""
        future = asyncio.get_running_loop().create_future()
        self._next += 1
        self._waiting[self._next] = future
        self._outbox.put((self._next, method, arguments))
        return future

    def kill(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.join()


def _run(connection: socket.socket, make: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    asyncio.run(_serve(connection, make(*arguments)))


async def _serve(connection: socket.socket, served: Any) -> None:
    reader, writer = await asyncio.open_connection(sock=connection)
    outbox, working = _Outbox(writer), set()
    while True:
        try:
            calls = await _receive(reader)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        for number, method, arguments in calls:
            task = asyncio.create_task(_work(outbox, number, getattr(served, method), arguments))
            working.add(task)
            task.add_done_callback(working.discard)


async def _work(outbox: _Outbox, number: int, method: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        outbox.put((number, True, await method(*arguments)))
    except (RuntimeError, ValueError, TypeError, KeyError) as error:
        outbox.put((number, False, repr(error)))
