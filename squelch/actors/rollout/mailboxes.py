"""What a rollout worker holds for its clients: their requests in flight, and completions that they have not collected.

Invariants:

- A client that has had neither an open `collect` nor a `submit` for `CLIENT_GONE_S` counts as gone: its requests are
  cancelled and nothing of it is kept. A living client polls as long as it waits for a completion.
- A client that only seemed gone is told so at its next `collect`, so that none of its callers waits in vain.

All calls come from one event loop, and none waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from squelch.actors.messages import Completion

CLIENT_GONE_S = 60.0
_LATE_S = 5.0
"""If the event loop is later than this with a check, it was held up, and may not have seen the client's calls yet."""
_KNOWN_GONE = 256
log = logging.getLogger(__name__)


@dataclass
class Mailbox:
    """One client's requests and completions. `collects`: its open calls; `check`: the next check whether it is gone."""

    collects: int = 0
    check: asyncio.TimerHandle | None = None
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    finished: deque[Completion] = field(default_factory=deque)
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class ClientGone(Exception):
    """A client that seemed gone asks for completions of requests that were aborted."""


class Mailboxes(dict[str, Mailbox]):
    """The mailboxes by client."""

    def __init__(self) -> None:
        super().__init__()
        self._gone: deque[str] = deque(maxlen=_KNOWN_GONE)

    def of(self, client: str) -> Mailbox:
        """The mailbox of a client that has just given a sign of life."""
        mailbox = self.setdefault(client, Mailbox())
        if mailbox.check is not None:
            mailbox.check.cancel()
        loop = asyncio.get_running_loop()
        due = loop.time() + CLIENT_GONE_S
        mailbox.check = loop.call_at(due, self._check, client, due)
        return mailbox

    @contextmanager
    def collecting(self, client: str) -> Iterator[Mailbox]:
        """The mailbox, while a call of its client is open. Raises ClientGone if the client's requests were aborted."""
        if client in self._gone:
            self._gone.remove(client)
            raise ClientGone(f"requests aborted: their client had no open poll for {CLIENT_GONE_S:g} s")
        mailbox = self.of(client)
        mailbox.collects += 1
        try:
            yield mailbox
        finally:
            mailbox.collects -= 1
            if client in self:
                self.of(client)

    def drop(self, client: str) -> None:
        """Cancels what a client waits for and forgets it."""
        mailbox = self.pop(client)
        if mailbox.check is not None:
            mailbox.check.cancel()
        for task in list(mailbox.tasks.values()):
            task.cancel()

    def _check(self, client: str, due: float) -> None:
        mailbox = self[client]
        if mailbox.collects or asyncio.get_running_loop().time() > due + _LATE_S:
            self.of(client)
            return
        if mailbox.tasks or mailbox.finished:
            self._gone.append(client)
            log.warning("client %s seems gone: %d requests aborted", client, len(mailbox.tasks))
        self.drop(client)
