"""The client of rollout workers: sends the requests of one tick of the event loop in one call per worker, and receives
completions by one long poll per worker.

Imports neither Ray nor vLLM: a worker is called through a `Port`, which the environment actor makes from a Ray handle.

Invariants:

- There is at most one `collect` per worker at a time, and one `submit` per worker and tick.
- Every request is sent under a unique id: a ticket may be retried while the worker still has the requests of the
  previous attempt, and aborting those must not affect the new ones.
- Every request ends: with its completion, with a `GenerationFailed` that names the worker, or because its caller
  cancels it; the worker then stops sampling it.
- After a failed poll, later requests use another client name. A frozen worker answers the abandoned poll once it runs
  again, and that answer must not contain the completions of later requests.

`generate` waits for its completion until its caller cancels it. A poll waits for the worker for at most `poll_s` plus
`grace_s`.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from squelch.actors.messages import Completion, GenerationRequest

POLL_S = 5.0
COLLECT_GRACE_S = 30.0
"""Seconds within which a rollout worker must take requests, and beyond the time-out of `collect` answer that."""


Generate = Callable[[str, GenerationRequest], Awaitable[Completion]]
"""Samples a request at the rollout worker of that name."""


class GenerationFailed(Exception):
    """A request that gets no completion; the message names the worker."""


async def generate_within(generate: Generate, worker: str, request: GenerationRequest, timeout_s: float) -> Completion:
    """The sampled turn. Raises TimeoutError only after `timeout_s`, and GenerationFailed for a time-out within."""
    bound = asyncio.timeout(timeout_s)
    try:
        async with bound:
            return await generate(worker, request)
    except TimeoutError as error:
        if bound.expired():
            raise
        raise GenerationFailed(str(error)) from error


class Port(Protocol):
    """The methods of a rollout worker that the client calls; see `actors.rollout.worker`."""

    async def submit(self, client: str, requests: list[GenerationRequest]) -> None:
        """As `RolloutWorker.submit`."""

    async def collect(self, client: str, timeout_s: float) -> list[Completion]:
        """As `RolloutWorker.collect`."""

    async def abort(self, client: str, request_ids: list[str]) -> None:
        """As `RolloutWorker.abort`."""


@dataclass
class _Mailbox:
    """Requests of one worker. `pending`, and the aborts in `given_up`, are sent at the end of the tick; `waiting`: the
    futures that callers await; `client`: the name under which the requests are sent."""

    client: str
    pending: list[GenerationRequest] = field(default_factory=list)
    given_up: list[str] = field(default_factory=list)
    waiting: dict[str, asyncio.Future[Completion]] = field(default_factory=dict)
    sending: set[asyncio.Task[None]] = field(default_factory=set)
    poll: asyncio.Task[None] | None = None


class GenerationClient:
    """Samples turns for many concurrent episodes. `port(worker)` returns a worker's port by name; it may change."""

    def __init__(
        self, client: str, port: Callable[[str], Port], poll_s: float = POLL_S, grace_s: float = COLLECT_GRACE_S
    ) -> None:
        # a successor has the name of a dead actor, whose requests the worker may still hold
        self._client = f"{client}~{uuid.uuid4().hex[:12]}"
        self._port = port
        self._poll_s = poll_s
        self._grace_s = grace_s
        self._mailboxes: dict[str, _Mailbox] = {}
        self._number = itertools.count(1)

    async def generate(self, worker: str, request: GenerationRequest) -> Completion:
        """The sampled turn. Raises GenerationFailed if the worker cannot deliver it."""
        mailbox = self._mailboxes.setdefault(worker, _Mailbox(self._client))
        request = replace(request, request_id=f"{request.request_id}#{self._client}#{next(self._number)}")
        loop = asyncio.get_running_loop()
        if not mailbox.pending and not mailbox.given_up:
            loop.call_soon(self._flush, worker)
        future: asyncio.Future[Completion] = loop.create_future()
        mailbox.pending.append(request)
        mailbox.waiting[request.request_id] = future
        try:
            completion = await future
        except asyncio.CancelledError:
            self._give_up(worker, request)
            raise
        if completion.error is not None:
            raise GenerationFailed(f"rollout worker {worker}: {completion.error}")
        return completion

    def _give_up(self, worker: str, request: GenerationRequest) -> None:
        mailbox = self._mailboxes[worker]
        mailbox.waiting.pop(request.request_id, None)
        kept = [one for one in mailbox.pending if one.request_id != request.request_id]
        if len(kept) < len(mailbox.pending):
            mailbox.pending = kept
            return
        if not mailbox.pending and not mailbox.given_up:
            asyncio.get_running_loop().call_soon(self._flush, worker)
        mailbox.given_up.append(request.request_id)

    def _flush(self, worker: str) -> None:
        """At the end of a tick, sends all requests that were added in it."""
        mailbox = self._mailboxes[worker]
        requests, mailbox.pending = mailbox.pending, []
        given_up, mailbox.given_up = mailbox.given_up, []
        self._begin_sending(worker, mailbox.client, requests, given_up)
        if requests and (mailbox.poll is None or mailbox.poll.done()):
            mailbox.poll = asyncio.create_task(self._receive(worker))

    def _begin_sending(self, worker: str, client: str, requests: list[GenerationRequest], given_up: list[str]) -> None:
        sending = self._mailboxes[worker].sending
        task = asyncio.create_task(self._send(worker, client, requests, given_up))
        sending.add(task)
        task.add_done_callback(sending.discard)

    async def _send(self, worker: str, client: str, requests: list[GenerationRequest], given_up: list[str]) -> None:
        submitted = [request.request_id for request in requests]
        try:
            async with asyncio.timeout(self._grace_s):
                if requests:
                    await self._port(worker).submit(client, requests)
                if given_up:
                    await self._port(worker).abort(client, given_up)
        except TimeoutError:
            self._fail(worker, submitted, f"did not answer a submit call within {self._grace_s:g} s")
            if requests:  # a frozen worker still accepts them once it runs again
                self._begin_sending(worker, client, [], [*submitted, *given_up])
        except Exception as error:  # every error of the other process is passed on to the callers
            self._fail(worker, submitted, _text(error))

    async def _receive(self, worker: str) -> None:
        """Polls while a caller waits."""
        mailbox = self._mailboxes[worker]
        bound = self._poll_s + self._grace_s
        try:
            while mailbox.waiting:
                async with asyncio.timeout(bound):
                    completions = await self._port(worker).collect(mailbox.client, self._poll_s)
                self._deliver(mailbox, completions)
        except TimeoutError:
            self._break_off(worker, f"did not answer a collect call within {bound:g} s")
        except Exception as error:  # every error of the other process is passed on to the callers
            self._break_off(worker, _text(error))

    def _break_off(self, worker: str, reason: str) -> None:
        """Fails every request of a worker whose poll failed, and continues under another client name."""
        mailbox = self._mailboxes[worker]
        lost = list(mailbox.waiting)
        self._fail(worker, lost, reason)
        self._begin_sending(worker, mailbox.client, [], [*mailbox.given_up, *lost])
        mailbox.pending, mailbox.given_up = [], []
        mailbox.client = f"{self._client}~{next(self._number)}"

    @staticmethod
    def _deliver(mailbox: _Mailbox, completions: list[Completion]) -> None:
        for completion in completions:
            future = mailbox.waiting.pop(completion.request_id, None)
            if future is not None and not future.done():
                future.set_result(completion)

    def _fail(self, worker: str, request_ids: list[str], reason: str) -> None:
        mailbox = self._mailboxes[worker]
        for request_id in request_ids:
            future = mailbox.waiting.pop(request_id, None)
            if future is not None and not future.done():
                future.set_exception(GenerationFailed(f"rollout worker {worker}: {reason}"))


def _text(error: Exception) -> str:
    """The last line of an error's text: an actor's error contains the remote traceback, which ends with the message."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
