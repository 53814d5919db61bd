"""The coordinator's side of the filter service: hands it groups, asks for decisions, replaces it when it dies.

Invariants: a service is handed each group once for as long as it lives. A new one gets the state of the last closed
step and the groups of the steps still open before anything else is asked of it, so that it decides as the one before
would have. Calls therefore take turns: a call that finds the service dead replaces it within its own turn.

Who waits: the coordinator, for each answer at most `FILTER_TIMEOUT_S`, then a TimeoutError names the filter; a call,
for the turns before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ray.exceptions import RayActorError

from actors.filtering import StepDecision
from cluster.errors import UserError
from cluster.fleet import Fleet, within
from cluster.play import PlayedGroup

FILTER_TIMEOUT_S = 60.0
T = TypeVar("T")


class _Died(Exception):
    """The service's process is gone."""


class Filtering:
    """The filter service as one that never dies. `played` gives the groups of the steps that the loop still holds."""

    def __init__(self, fleet: Fleet, state: dict[str, Any] | None, played: Callable[[], list[PlayedGroup]]) -> None:
        self.fleet, self._played = fleet, played
        self.state = state
        """The service's state after the last closed step; None before the first. Without the steps still open: their
        groups go in again after a restart or a resume."""
        self._closed = -1
        self._admitted: set[str] = set()
        """Groups that the present service has been handed."""
        self._turn = asyncio.Lock()

    async def restore(self) -> None:
        """Gives a service that has just started the state of an earlier process."""
        if self.state:
            async with self._turn:
                await self._lasting(lambda: self._ask("restore", self.state))

    async def admit(self, groups: list[PlayedGroup]) -> None:
        """Hands over those of the groups that the service does not have."""
        async with self._turn:
            await self._lasting(lambda: self._hand_over(groups))

    async def close(self, step: int, final: bool, target: int) -> StepDecision:
        """Decides on a step that should train on `target` groups; `final`: no further round is to be asked for."""
        async with self._turn:
            return await self._lasting(lambda: self._close(step, final, target))

    async def _close(self, step: int, final: bool, target: int) -> StepDecision:
        decision: StepDecision = await self._ask("close", step, final, target)
        if decision.closed:
            state = await self._ask("state")
            self._closed = step
            open_ids = {group.ticket.ticket_id for group in self._open()}
            recent = [item for item in state.get("recent", []) if item[0] not in open_ids]
            self.state = {**state, "steps": {}, **({"recent": recent} if "recent" in state else {})}
        return decision

    def _open(self) -> list[PlayedGroup]:
        return [group for group in self._played() if group.ticket.step > self._closed]

    async def _hand_over(self, groups: list[PlayedGroup]) -> None:
        new = [group.summary for group in groups if group.summary.group_id not in self._admitted]
        if new:
            await self._ask("admit", new)
            self._admitted |= {summary.group_id for summary in new}

    async def _lasting(self, work: Callable[[], Awaitable[T]]) -> T:
        """Does `work`, anew with each service that takes a dead one's place."""
        cause = ""
        while True:
            try:
                if cause:
                    await self._replace(cause)
                return await work()
            except _Died as death:
                cause = str(death)

    async def _replace(self, cause: str) -> None:
        self._admitted.clear()
        self.fleet.replace_filter(cause)
        if self.state:
            await self._ask("restore", self.state)
        await self._hand_over(self._open())

    async def _ask(self, method: str, *arguments: Any) -> Any:
        """One call; _Died when the service is, UserError with what the filter refuses."""
        call = getattr(self.fleet.filter, method).remote(*arguments)
        try:
            return (await within({"filter": call}, FILTER_TIMEOUT_S, method))["filter"]
        except RuntimeError as error:
            if isinstance(error.__cause__, RayActorError):
                raise _Died(str(error)) from error
            if isinstance(error.__cause__, ValueError):  # what the filter refuses is the user's to mend
                raise UserError(f"filter: {str(error.__cause__).strip().splitlines()[-1]}") from error
            raise
