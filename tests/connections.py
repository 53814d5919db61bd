"""A server of an ASGI application in a thread of the test, and connections to servers."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn


@contextmanager
def serving(app: Any, **settings: Any) -> Iterator[int]:
    """The port at which the application is served on loopback. `settings`: further ones of uvicorn."""
    running = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off", **settings))
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 180
    while not running.started:
        assert time.monotonic() < deadline, "the server does not start"
        time.sleep(0.005)
    try:
        yield running.servers[0].sockets[0].getsockname()[1]
    finally:
        running.should_exit = True
        thread.join(180)


def ends(connection: socket.socket, within_s: float) -> bool:
    """Whether the server ends the connection in time."""
    connection.settimeout(within_s)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True
