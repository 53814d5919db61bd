"""The coordinator's side of the filter service: hands it groups, asks for decisions, replaces it when it dies.

Invariants: a service is handed each group once for as long as it lives. A new one gets the state after the last close,
and the groups that came after it, before anything else is asked of it, so that it decides as the one before would have
(a sliding window but nearly: neighbours that open groups had pushed out are not in that state). Calls therefore take
turns: one that finds the service dead replaces it within its own turn, and if that fails no further call is made.

Who waits: the coordinator, for each answer at most `FILTER_TIMEOUT_S`, and `cluster.start_timeout_s` for those of a new
service; then a TimeoutError names the filter, and whoever waits for a turn is told of it at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from actors.filter.decisions import StepDecision
from cluster.control.parties import Died, Refused
from cluster.errors import UserError
from cluster.fleet.fleet import Fleet
from cluster.fleet.waiting import bounded
from cluster.loop.playing import PlayedGroup

FILTER_TIMEOUT_S = 60.0
T = TypeVar("T")


class Filtering:
    """The filter service as one that never dies. `played` gives the groups of the steps that the loop still holds."""

    def __init__(
        self,
        fleet: Fleet,
        state: dict[str, Any] | None,
        played: Callable[[], list[PlayedGroup]],
        start_timeout_s: float,
    ) -> None:
        self.fleet, self._played, self._start_timeout_s = fleet, played, start_timeout_s
        self.state = state
        """The service's state after the last closed step; None before the first. Without the steps still open: their
        groups go in again after a resume."""
        self._latest, self._within = state, frozenset[str]()
        """What a new service is given: the state after the last close, and the groups of the step it left open."""
        self._closed = -1
        self._admitted: set[str] = set()
        """Groups that the present service has, or had before a step was closed."""
        self._death = ""
        """Why the present service is gone, or has not got everything yet."""
        self._failure: Exception | None = None
        self._turn = asyncio.Lock()

    async def restore(self) -> None:
        """Gives a service that has just started the state of an earlier process."""
        if self.state:
            await self._in_turn(lambda: self._ask("restore", self.state))

    async def admit(self, groups: list[PlayedGroup]) -> None:
        """Hands over those of the groups that the service does not have."""
        await self._in_turn(lambda: self._hand_over(groups))

    async def close(self, step: int, final: bool, target: int) -> StepDecision:
        """Decides on a step that should train on `target` groups; `final`: no further round is to be asked for."""
        return await self._in_turn(lambda: self._close(step, final, target))

    async def _close(self, step: int, final: bool, target: int) -> StepDecision:
        decision: StepDecision = await self._ask("close", step, final, target)
        state = await self._ask("state")
        decided = frozenset(d.group_id for d in decision.decisions)
        if decision.closed:
            self._closed, self._within = step, frozenset()
            self.state = self._latest = self._without_open(state, {})
        else:
            self._within = decided
            self._latest = self._without_open(state, {str(step): state["steps"][str(step)]})
        return decision

    def _without_open(self, state: dict[str, Any], steps: dict[str, Any]) -> dict[str, Any]:
        """A state without the groups of steps still open, but for `steps`."""
        gone = {group.ticket.ticket_id for group in self._open()}
        recent = [item for item in state.get("recent", []) if item[0] not in gone]
        return {**state, "steps": steps, **({"recent": recent} if "recent" in state else {})}

    def _open(self) -> list[PlayedGroup]:
        """Groups that came after the last close, of steps still open."""
        later = (group for group in self._played() if group.ticket.step > self._closed)
        return [group for group in later if group.ticket.ticket_id not in self._within]

    async def _hand_over(self, groups: list[PlayedGroup], timeout_s: float = FILTER_TIMEOUT_S) -> None:
        new = [group.summary for group in groups if group.summary.group_id not in self._admitted]
        if new:
            await self._ask("admit", new, timeout_s=timeout_s)
            self._admitted |= {summary.group_id for summary in new}

    async def _in_turn(self, work: Callable[[], Awaitable[T]]) -> T:
        """Does `work`, anew with each service that takes a dead one's place."""
        async with self._turn:
            if isinstance(self._failure, UserError):  # whichever call meets it, it is the user's to mend
                raise self._failure
            if self._failure is not None:
                raise RuntimeError(f"the filter failed before: {self._failure}") from self._failure
            try:
                return await self._lasting(work)
            except Exception as failure:
                self._failure = failure
                raise

    async def _lasting(self, work: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                if self._death:
                    await self._replace()
                return await work()
            except Died as death:
                self._death = str(death)

    async def _replace(self) -> None:
        self._admitted = set(self._within)
        self.fleet.replace_filter(self._death)
        if self._latest:
            await self._ask("restore", self._latest, timeout_s=self._start_timeout_s)
        await self._hand_over(self._open(), self._start_timeout_s)
        self._death = ""

    async def _ask(self, method: str, *arguments: Any, timeout_s: float = FILTER_TIMEOUT_S) -> Any:
        """One call; Died when the service is gone, UserError with what the filter refuses."""
        call = getattr(self.fleet.filter, method)(*arguments)
        try:
            return await bounded(call, timeout_s)
        except Refused as error:  # what the filter refuses is the user's to mend
            raise UserError(f"filter: {error.reason}") from error
        except TimeoutError as error:
            raise TimeoutError(f"{method}: filter did not answer within {timeout_s:g} s") from error
