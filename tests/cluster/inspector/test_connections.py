"""Connections without a request end, and one address cannot keep others out."""

from __future__ import annotations

import socket
import time
from contextlib import suppress

import httpx
import pytest
from starlette.responses import PlainTextResponse

from squelch.cluster.inspector import connections
from squelch.cluster.inspector.connections import Bounded
from tests.connections import ends, serving


def test_half_open_connections_end_and_one_address_keeps_no_other_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 2.0)
    monkeypatch.setattr(connections, "MOST_OF_ONE", 4)
    with serving(PlainTextResponse("hello"), http=Bounded) as port:
        where = ("127.0.0.1", port)
        many = [socket.create_connection(where, timeout=180, source_address=("127.0.0.2", 0)) for _ in range(10)]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            assert client.get("/").text == "hello", "another address is answered"
            assert client.get("/").text == "hello", "also on a connection that stays"
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline and not all(ends(one, within_s=0.01) for one in many):
            for one in many:
                with suppress(OSError):
                    one.send(b"G")
        assert time.monotonic() < deadline
