"""The coordinator's client of the filter service: sends it groups, requests decisions, and replaces it after its death.

Invariants: a service receives each group once in its life. Before any other call, a new service receives the state
after the last close and the groups that arrived after it, so that it decides as its predecessor would have. (Sliding
windows are restored only approximately: the state lacks neighbours that open groups had pushed out of the window.)
Calls are therefore made one at a time: a call that finds the service dead replaces it before the next call starts, and
if that fails no further call is made. Groups that arrive during a call go to the service together in the next one.

The coordinator waits for each answer as long as its row says (`cluster.control.calls`), and longer for the first one of
a new service (`FILTER_READY`). A service that is late is ended and counts as dead: its successor decides the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar

from squelch.cluster.control.actor_errors import Died, Refused
from squelch.cluster.control.calls import ADMIT, CLOSE, FILTER_READY, FILTER_RESTORE, Call
from squelch.cluster.fleet.fleet import Fleet
from squelch.cluster.loop.tickets.playing import PlayedGroup
from squelch.kit.base.errors import UserError
from squelch.kit.filter.decisions import StepDecision

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Filtering:
    """The filter service, replaced transparently when it dies. `played` returns the groups of the steps that the loop
    still holds."""

    def __init__(self, fleet: Fleet, state: dict[str, Any] | None, played: Callable[[], list[PlayedGroup]]) -> None:
        self.fleet, self._played = fleet, played
        self.state = state
        """The service's state after the last closed step; None before the first. It lacks the steps still open: a
        resumed run admits their groups again."""
        self._latest, self._within = state, frozenset[str]()
        """The restore data of a new service: the state after the last close, and the groups of the step left open."""
        self._closed = -1
        self._admitted: set[str] = set()
        """Groups of open steps that the present service has."""
        self._death: str | None = None
        """The cause of the service's death, until its successor has received its state."""
        self._failure: Exception | None = None
        self._turn = asyncio.Lock()
        self._arrived: list[PlayedGroup] = []
        """Groups that wait for their turn, in order of arrival."""

    async def restore(self) -> None:
        """Restores the state of an earlier process in a service that has just started."""
        if self.state:
            await self._in_turn(lambda: self._ask(FILTER_RESTORE, self.state))

    async def rewind(self, state: dict[str, Any], closed: int) -> None:
        """Returns the service to `state`, after the close of step `closed`, because the steps after it are played
        again. `played` must not return their groups meanwhile."""
        self.state = self._latest = state
        self._closed, self._within = closed, frozenset()
        self._arrived.clear()
        await self._in_turn(self._forget)

    async def _forget(self) -> None:
        await self._ask(FILTER_RESTORE, self._latest or {})
        self._admitted = set()

    async def admit(self, groups: list[PlayedGroup]) -> None:
        """Sends the service the groups that it does not have yet, with all others that have arrived meanwhile; whose
        turn comes next finds those handed over."""
        self._arrived += groups
        await self._in_turn(self._hand_over_arrived)

    async def close(self, step: int, final: bool, target: int) -> StepDecision:
        """Decides on a step that should train on `target` groups; `final`: no further refill round is possible."""
        return await self._in_turn(lambda: self._close(step, final, target))

    async def _close(self, step: int, final: bool, target: int) -> StepDecision:
        decision, state = await self._ask(CLOSE, step, final, target)
        decided = frozenset(d.group_id for d in decision.decisions)
        self._closed, self._within = (step, frozenset()) if decision.closed else (self._closed, decided)
        self._latest = self._without_open(state)
        if decision.closed:
            self.state = self._latest
            self._admitted -= decided - {group.summary.group_id for group in self._arrived}
        return decision

    def _without_open(self, state: dict[str, Any]) -> dict[str, Any]:
        """The state without recent groups of steps still open."""
        if "recent" not in state:
            return state
        gone = {group.ticket.ticket_id for group in self._open()}
        return {**state, "recent": [item for item in state["recent"] if item[0] not in gone]}

    def _open(self) -> list[PlayedGroup]:
        """The groups of open steps that arrived after the last close."""
        later = (group for group in self._played() if group.ticket.step > self._closed)
        return [group for group in later if group.ticket.ticket_id not in self._within]

    async def _hand_over_arrived(self) -> None:
        arrived = list(self._arrived)
        await self._hand_over(arrived)
        del self._arrived[: len(arrived)]

    async def _hand_over(self, groups: list[PlayedGroup]) -> None:
        summaries = {group.summary.group_id: group.summary for group in groups}
        new = [summary for name, summary in summaries.items() if name not in self._admitted]
        if new:
            await self._ask(ADMIT, new)
            self._admitted |= summaries.keys()

    async def _in_turn(self, work: Callable[[], Awaitable[T]]) -> T:
        """Runs `work` once no other call is under way, and repeats it with each successor of a dead service."""
        async with self._turn:
            if isinstance(self._failure, UserError):  # the user can correct it, so every call reports it
                raise self._failure
            if self._failure is not None:
                raise RuntimeError(f"the filter has failed earlier in this run: {self._failure}") from self._failure
            while True:
                try:
                    if self._death is not None:
                        await self._replace(self._death)
                    return await work()
                except Died as death:
                    self._death = str(death)
                except Exception as failure:
                    self._failure = failure
                    raise

    async def _replace(self, cause: str) -> None:
        self._admitted = set(self._within)
        await self.fleet.replace_filter(cause)
        await self._ask(FILTER_READY, [])
        if self._latest:
            await self._ask(FILTER_RESTORE, self._latest)
        await self._hand_over(self._open())
        self._death = None

    async def _ask(self, row: Call[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        """Makes one call.

        Raises:
            Died: the service's process is gone, or did not answer within the bound of the call and was ended.
            UserError: the filter refused its input; the text says why.
        """
        service = self.fleet.filter
        assert service is not None, "a run that trains starts its filter"
        try:
            return await service.call(row, *arguments, **named)
        except Refused as error:
            raise UserError(f"filter: {error.reason}") from error
        except TimeoutError as error:
            cause = f"{row.method}: filter: {error}"
            self.fleet.mark_dead("filter", service, cause)
            raise Died(cause) from error
