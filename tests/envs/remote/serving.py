"""A server of environments in a thread of the test."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from squelch.envs.remote.server import EnvironmentServer


@contextmanager
def served(server: EnvironmentServer) -> Iterator[str]:
    """The address of the server."""
    running = uvicorn.Server(uvicorn.Config(server.app, port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not running.started:
        assert time.monotonic() < deadline, "the server does not start"
        time.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}"
    finally:
        running.should_exit = True
        thread.join(20)
