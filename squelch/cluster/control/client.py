"""The client of a remote actor: makes the calls of `cluster.control.calls`, each with one time-out.

    coordinator ── await client.call(ROW, ...) ──▶ handle.METHOD.remote(...) ──▶ shell ──▶ the function
                                     (transport: Ray, or in-process fakes)    (actors.process.shell)

| the client waits for | unblocked by | on time-out |
|---|---|---|
| the actor's answer | the actor | TimeoutError after the row's bound; the caller names the actor |

A call returns a value or raises an error of `cluster.control.actor_errors`; it is not repeated here. An actor that
bounds the call itself gets `GRACE_S` more, to say what is late. A call that is given up is cancelled in its actor too,
where the transport can do that, and its result is never used. `progress` and `lost` are answered while another call is
under way. `cluster.control.rank_client` is the client of all learner ranks together. No Ray is imported here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, Protocol, TypeVar

from squelch.cluster.control.calls import GRACE_S, Call

if TYPE_CHECKING:
    from squelch.cluster.config import RunConfig
    from squelch.cluster.control.actor_errors import ActorError
    from squelch.kit.process.progress_marks import Progress

P = ParamSpec("P")
R = TypeVar("R")
Handle = Any
"""Sends a call to an actor: `handle.METHOD.remote(*arguments)`, as a Ray actor's handle does, returns an awaitable."""


class Transport(Protocol):
    """The transport behind the actors' handles: Ray, or actors in this process."""

    def failure(self, error: BaseException) -> ActorError | None:
        """The error of the actor that a call's error stands for; None if the error is not the actor's."""

    def result(self, reference: Any) -> Any:
        """The reference to a further result of a call that has ended."""

    def cancel(self, call: Any) -> None:
        """Cancels a call in its actor."""

    def kill(self, handle: Handle) -> None:
        """Ends an actor at once in any state, without waiting for the end. A second call does nothing."""

    def own_node(self) -> tuple[str, str]:
        """The id and address of the caller's node."""

    def offer(self, folder: Path) -> Any:
        """A checkpoint of the caller's disk, as ranks on any node can load it."""


def loop_time() -> float:
    """Seconds of the event loop's clock, which is virtual in tests."""
    return asyncio.get_running_loop().time()


def nothing() -> None:
    """Gives nothing back: the actor has no resources of its own."""


class Client:
    """The client of one actor. `release` gives its resources back."""

    def __init__(
        self, handle: Handle, transport: Transport, config: RunConfig, release: Callable[[], None] = nothing
    ) -> None:
        self.handle, self.transport, self.config, self.release = handle, transport, config, release
        self._life: asyncio.Future[None] | None = None

    async def call(self, row: Call[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        """Makes a call. `Died`, `Failed`, `Refused`, or TimeoutError after the row's bound."""
        sent = getattr(self.handle, row.method).remote(*arguments, **named)
        first, *further = sent if row.returns > 1 else [sent]
        bound_s = None if row.bound is None else row.bound(self.config, *arguments, **named)
        bound = asyncio.timeout(None if bound_s is None else bound_s + GRACE_S * row.guarded)
        try:
            async with bound:
                value = await first
        except asyncio.CancelledError:
            self.transport.cancel(first)
            raise
        except Exception as error:
            if not bound.expired():
                raise_failure(self.transport, error)
            self.transport.cancel(first)
            assert bound_s is not None, "it has expired"
            raise TimeoutError(f"no answer {row.within(bound_s)}") from None
        whole: Any = (value, *map(self.transport.result, further)) if further else value
        return whole

    async def progress(self) -> Progress:
        """Its progress, also while another call is under way; `Failed` if it cannot work any more."""
        return await answer(self.transport, self.handle.progress.remote())

    async def lost(self) -> NoReturn:
        """Waits until the actor's process is gone, then raises `Died`; the actor has been ready."""
        self._life = self._life or life(self.transport, self.handle)
        await asyncio.wait({self._life})
        self._life.result()
        raise RuntimeError("the actor's life ended without an error")

    def kill(self) -> None:
        """Ends the actor at once in any state, without waiting for the end. A second call does nothing."""
        self.transport.kill(self.handle)
        self.release()


async def answer(transport: Transport, call: Any) -> Any:
    """The value of a call, or its error as one of `cluster.control.actor_errors`."""
    try:
        return await call
    except Exception as error:
        raise_failure(transport, error)


def raise_failure(transport: Transport, error: Exception) -> NoReturn:
    """Raises a call's error as one of `cluster.control.actor_errors`, or as it is if it is not the actor's."""
    failure = transport.failure(error)
    if failure is None:
        raise error
    raise failure from error


def life(transport: Transport, handle: Handle) -> asyncio.Future[None]:
    """A call that fails when the actor's process ends. It is made once: an actor answers few of them at a time."""
    ends = asyncio.ensure_future(answer(transport, handle.live.remote()))
    ends.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # perhaps nobody asks for it
    return ends
