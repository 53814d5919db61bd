"""Connections without a request end, and one address cannot keep others out."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx
import pytest
import uvicorn
from starlette.responses import PlainTextResponse

from squelch.cluster.inspector import connections
from squelch.cluster.inspector.connections import Bounded


@contextmanager
def served() -> Iterator[int]:
    """The port of a server with these connections."""
    config = uvicorn.Config(PlainTextResponse("hello"), port=0, http=Bounded, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not server.started:
        assert time.monotonic() < deadline, "the server does not start"
        time.sleep(0.005)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(20)


def is_ended(connection: socket.socket) -> bool:
    connection.settimeout(0.01)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def test_half_open_connections_end_and_one_address_keeps_no_other_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 2.0)
    monkeypatch.setattr(connections, "MOST_OF_ONE", 4)
    with served() as port:
        where = ("127.0.0.1", port)
        many = [socket.create_connection(where, timeout=30, source_address=("127.0.0.2", 0)) for _ in range(10)]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            assert client.get("/").text == "hello", "another address is answered"
            assert client.get("/").text == "hello", "also on a connection that stays"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not all(map(is_ended, many)):
            for one in many:
                with suppress(OSError):
                    one.send(b"G")
        assert time.monotonic() < deadline
