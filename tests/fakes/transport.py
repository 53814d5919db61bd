"""The transport to actors of this process, in the place of Ray: the real clients call the methods of any object.

An actor's object has `kill`, and a method for each row of `cluster.control.calls` that the run calls, `live` and
`progress` among them, all of them coroutines. A call that fails raises the loop's own errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from squelch.cluster.config import RunConfig
from squelch.cluster.control.client import Client
from squelch.cluster.control.rank_client import LearnerClient
from squelch.learner.network import LOOPBACK

NODE = "node"
"""The only node."""


class InProcess:
    """As `cluster.control.client.Transport`."""

    def failure(self, error: BaseException) -> None:
        return None

    def result(self, reference: Twofold) -> Any:
        return reference.results[1]

    def cancel(self, call: Any) -> None:
        """A coroutine is cancelled with its caller."""

    def kill(self, handle: Handle) -> None:
        handle.actor.kill()

    def own_node(self) -> tuple[str, str]:
        return NODE, LOOPBACK

    def offer(self, folder: Path) -> Path:
        return folder


TRANSPORT = InProcess()


class Handle:
    """Calls the methods of an actor as a Ray handle does: `handle.METHOD.remote(*arguments)`."""

    twofold = frozenset({"play", "evaluate"})
    """Methods whose second result stays with the actor."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor

    def __getattr__(self, method: str) -> SimpleNamespace:
        sender = SimpleNamespace(remote=lambda *arguments: self._send(method, arguments))
        setattr(self, method, sender)
        return sender

    def _send(self, method: str, arguments: Sequence[Any]) -> Any:
        """The call as an awaitable; of a method with two results, the first one and a reference to both."""
        call = getattr(self.actor, method)(*arguments)
        if method not in self.twofold:
            return call
        both = Twofold(call)
        return [both.first(), both]


class Twofold:
    """A call with two results."""

    def __init__(self, call: Coroutine[Any, Any, tuple[Any, Any]]) -> None:
        self.call = call

    async def first(self) -> Any:
        self.results = await self.call
        return self.results[0]


class RankHandle(Handle):
    """One rank of a learner that is one object: its collectives begin with rank 0's call and end with it."""

    alone = frozenset({"identify", "open_endpoint", "unreachable", "live", "progress"})

    def __init__(self, learner: Any, rank: int) -> None:
        super().__init__(learner)
        self.rank = rank

    def _send(self, method: str, arguments: Sequence[Any]) -> Any:
        if method in self.alone:
            return super()._send(method, arguments)
        if self.rank == 0:
            self.actor.collective = asyncio.ensure_future(super()._send(method, arguments))
        return self.actor.collective


def client(actor: Any, config: RunConfig) -> Client:
    """The client of an actor of this process."""
    return Client(Handle(actor), TRANSPORT, config)


def learner_client(learner: Any, ranks: int, config: RunConfig) -> LearnerClient:
    """The client of a learner that is one object."""
    return LearnerClient([RankHandle(learner, rank) for rank in range(ranks)], TRANSPORT, config)


def behind(client: Client | LearnerClient) -> Any:
    """The actor behind a client."""
    handle = client.handles[0] if isinstance(client, LearnerClient) else client.handle
    return handle.actor
