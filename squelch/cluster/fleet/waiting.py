"""Bounded waits for named actors; the error of a time-out names the late actors.

The loop awaits every actor through one of these functions. A wait that ends early cancels the calls under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar

from squelch.actors.process.stage import OnStage
from squelch.cluster.control.actor_errors import ActorError
from squelch.cluster.control.calls import Bound

T = TypeVar("T")


async def bounded(call: Awaitable[T], timeout_s: float) -> T:
    """The result of one call; TimeoutError if it takes longer than `timeout_s`. Unlike `asyncio.wait_for` up to Python
    3.11, it is cancelled even if the call ends at the same moment."""
    bound = asyncio.timeout(timeout_s)
    try:
        async with bound:
            return await call
    except TimeoutError:
        if not bound.expired():
            raise
        raise TimeoutError(f"no answer within {timeout_s:g} s") from None


async def outcomes(calls: Mapping[str, Awaitable[Any]]) -> dict[str, Any]:
    """Result or exception of each named call, which has a bound of its own."""
    found = await asyncio.gather(*calls.values(), return_exceptions=True)
    return dict(zip(calls, found, strict=True))


MOST_NAMED = 3
"""Actors that are still awaited and are named."""


def announced(
    calls: Mapping[str, Awaitable[Any]], words: Mapping[str, str], on_stage: OnStage
) -> dict[str, Awaitable[Any]]:
    """The same named calls; `on_stage` hears which of them are awaited still, in `words`, at first and whenever one
    ends."""
    awaited = dict.fromkeys(calls)

    def tell() -> None:
        named = [words.get(name, name) for name in list(awaited)[:MOST_NAMED]]
        more = f" and {len(awaited) - MOST_NAMED} more" if len(awaited) > MOST_NAMED else ""
        text = f"{len(calls) - len(awaited)} of {len(calls)} up"
        on_stage(f"{text}, waiting for {', '.join(named)}{more}" if awaited else text, None)

    async def one(name: str, call: Awaitable[Any]) -> Any:
        result = await call
        del awaited[name]
        tell()
        return result

    tell()
    return {name: one(name, call) for name, call in calls.items()}


async def within(calls: Mapping[str, Awaitable[Any]], timeout_s: float | None, what: str) -> dict[str, Any]:
    """As `each_within`, with one bound for all; None: each call has a bound of its own."""
    return await each_within(calls, dict.fromkeys(calls, Bound(timeout_s)) if timeout_s is not None else {}, what)


async def each_within(calls: Mapping[str, Awaitable[Any]], bounds: Mapping[str, Bound], what: str) -> dict[str, Any]:
    """Results of named calls. The first failure raises RuntimeError with its actor's name at once; a TimeoutError names
    the actors that are late by their bound. A call without one has a bound of its own."""
    tasks = {name: asyncio.ensure_future(_named(call, name, what)) for name, call in calls.items()}
    now = asyncio.get_running_loop().time
    began = now()
    try:
        while open_ := [name for name, task in tasks.items() if not task.done()]:
            left = min((bounds[name].seconds + began - now() for name in open_ if name in bounds), default=None)
            waited = asyncio.wait([tasks[name] for name in open_], timeout=left, return_when=asyncio.FIRST_EXCEPTION)
            if failed := next((task.exception() for task in (await waited)[0] if task.exception()), None):
                raise failed
            late = [name for name in open_ if not tasks[name].done() and name in bounds]
            if late := [name for name in late if now() - began >= bounds[name].seconds]:
                longest = max((bounds[name] for name in late), key=lambda bound: bound.seconds)
                raise TimeoutError(f"{what}: {', '.join(late)} did not answer within {longest}")
    except BaseException:
        await _cancel({task for task in tasks.values() if not task.done()})
        raise
    return {name: task.result() for name, task in tasks.items()}


async def _cancel(tasks: set[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _named(call: Awaitable[Any], name: str, what: str) -> Any:
    try:
        return await call
    except (ActorError, RuntimeError, ValueError, TimeoutError) as error:
        raise RuntimeError(f"{what}: {name} failed: {error}") from error
