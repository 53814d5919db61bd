"""The inspector's connections: none may wait for a request for longer than `REQUEST_S`, and only so many are held.

Beyond loopback anybody may connect, before any token is asked for, and each connection is a file descriptor.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 10.0
"""Seconds within which a request must be whole."""
MOST_CLIENTS, MOST_OF_ONE = 512, 64
"""Connections at a time, in all and of one address; a process may usually have 1,024 descriptors."""


class Bounded(H11Protocol):
    """One connection, within these bounds."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begins to wait for a request, or ends the connection if there are too many."""
        super().connection_made(transport)
        address = (self.client or ("",))[0]
        own = sum((one.client or ("",))[0] == address for one in self.connections if isinstance(one, Bounded))
        if len(self.connections) > MOST_CLIENTS or own > MOST_OF_ONE:
            transport.abort()
        else:
            self._await_request()

    def data_received(self, data: bytes) -> None:
        """Takes a part of a request."""
        super().data_received(data)
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the connection."""
        self._forget()
        super().connection_lost(exc)

    def _await_request(self) -> None:
        if self._is_answering:
            self._forget()
        elif self._late is None:
            self._late = self.loop.call_later(REQUEST_S, self._end)

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _forget(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _end(self) -> None:
        self._late = None
        if not self._is_answering:
            self.transport.abort()
