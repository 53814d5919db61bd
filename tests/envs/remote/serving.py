"""A server of environments in a thread of the test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from squelch.envs.remote.server import EnvironmentServer
from tests.connections import serving


@contextmanager
def served(server: EnvironmentServer) -> Iterator[str]:
    """The address of the server."""
    with serving(server.app) as port:
        yield f"http://127.0.0.1:{port}"
