"""Delivers a published version to the rollout workers: by broadcast if learner and workers have GPUs, else each worker
reads it in the learner's memory, of their GPU or of their host, or fetches it from the object store.

A broadcast needs a weight group (`actors.weight_group`): learner rank 0 and the engines of all workers that the version
goes to. A group never changes. If a worker has joined or left since the last version, or the learner was replaced, a
new group is formed at this weight boundary, before the broadcast.

    waits for                              unblocked by            on failure or time-out
    forming: rank 0 and all its workers    one another             all workers read the object store
    broadcast: the same                    one another             the workers that failed read the object store
    memory, object store: every worker     its parity probe        the late worker is replaced by the fleet

A worker that cannot read the learner's memory takes the object store, and the log says why; where `exact` of the
way (`actors.weight_ways`) that is set by name forbids that, it is `SettingRefused` instead.

Invariants:

- A failed group costs time and never a version, because every published version is in the object store. The next
  version forms a new group.
- Every worker checks its weights with the parity probe, however they were delivered.
- A rank that is lost in a broadcast raises `SenderLost`: the version may be lost with it.

This module does not import Ray: it calls actors through their clients (`cluster.control.client`).
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from squelch.actors.config import RolloutConfig
from squelch.actors.messages import GroupMember, TransferRefused, UpdateReport, WeightBundle
from squelch.actors.weight_ways import Way
from squelch.cluster.control.actor_errors import Died, Failed
from squelch.cluster.control.calls import (
    JOIN_GROUP,
    JOIN_GROUP_AS_WORKER,
    OPEN_GROUP,
    RECEIVE_WEIGHTS,
    SEND,
    UPDATE_WEIGHTS,
)
from squelch.cluster.control.client import Client, loop_time
from squelch.cluster.control.membership import Member
from squelch.cluster.control.rank_client import LearnerClient
from squelch.cluster.fleet.waiting import outcomes
from squelch.learner.refusal import SettingRefused

log = logging.getLogger(__name__)
SENDER = "learner"
_NUMBERS = re.compile(r"\d+")
"""What differs from version to version in a reason."""


class SenderLost(RuntimeError):
    """The learner failed in a broadcast. `cause`: its error."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"the learner was lost while it sent weights: {cause}")
        self.cause = cause


class Delivery:
    """Every version goes through `deliver`, one after another. `on_event` takes a span, as `Archive.event`."""

    def __init__(self, rollout: RolloutConfig, way: Way, on_event: Callable[..., None]) -> None:
        self.rollout, self.way, self.on_event = rollout, way, on_event
        self.timeout_s = rollout.update_timeout_s / 2
        """Bound of the forming of a group, and of a broadcast."""
        self._members: list[object] = []
        """The members of the present group, the learner first; empty without a group."""
        self._number = 0
        self._ended: dict[str, float] = {}
        self._said: dict[str, str] = {}
        """Why each worker last did not read the learner's memory, and the learner did not share its GPU's."""

    async def deliver(
        self, bundle: WeightBundle, workers: Sequence[Member[Client]], learner: LearnerClient | None
    ) -> tuple[dict[str, Any], dict[str, float]]:
        """The report or error of each worker by name, and the loop's time at which each had loaded. SenderLost if the
        learner failed in a broadcast; SettingRefused if weights did not take the way that is asked for by name."""
        self._ended = {}
        self._say(SENDER, bundle.why_not_on_gpu, "shares weights in the host's memory and not on its GPU")
        found, rest = dict[str, Any](), workers
        if self.way.group and learner is not None and workers and await self._formed(learner, workers):
            found = await self._broadcast(bundle, learner, workers)
            failed = [member for member in workers if isinstance(found[member.name], Exception)]
            rest = [member for member in failed if not isinstance(found[member.name], Died)]
        return found | await self._through_store(bundle, rest), self._ended

    async def _through_store(self, bundle: WeightBundle, workers: Sequence[Member[Client]]) -> dict[str, Any]:
        found = await self._update_all(bundle, workers)
        sound = [member for member in workers if _loaded_nothing(found[member.name])]
        return found | await self._update_all(bundle, sound)  # memory may have been short for a moment

    async def _update_all(self, bundle: WeightBundle, workers: Sequence[Member[Client]]) -> dict[str, Any]:
        calls = {member.name: self._timed(member.name, member.actor.call(UPDATE_WEIGHTS, bundle)) for member in workers}
        return await outcomes(calls)

    async def _timed(self, name: str, update: Awaitable[UpdateReport]) -> UpdateReport:
        report = await update
        self._ended[name] = loop_time()
        self._say(name, report.why_not_shared, "takes weights from the object store")
        return report

    def _say(self, name: str, why: str, what: str) -> None:
        """Logs once why an actor does something else than it should, or refuses it."""
        if why and (way := self.rollout.way) and way.exact:
            raise SettingRefused(
                f"rollout.weight_transfer={way.name}, but {name} {what}: {why}; set rollout.weight_transfer=auto, "
                "which allows other ways"
            )
        reason = _NUMBERS.sub("", why)
        if why and self._said.get(name) != reason:
            log.warning("%s %s: %s", name, what, why)
        self._said[name] = reason

    async def _formed(self, learner: LearnerClient, workers: Sequence[Member[Client]]) -> bool:
        """Whether there is a group of exactly these actors; a new one is formed if the present one is of others."""
        members: list[object] = [learner, *(member.actor for member in workers)]
        if len(members) == len(self._members) and all(a is b for a, b in zip(members, self._members, strict=True)):
            return True
        started, self._members, self._number = time.time(), [], self._number + 1
        failure = await self._form_group(learner, workers)
        facts = {"number": self._number, "members": [SENDER, *(member.name for member in workers)], "failure": failure}
        self.on_event("rollout", "weight_group", started, time.time(), **facts)
        if failure is not None:
            log.warning(
                "weight group %d was not formed, weights go through the object store: %s", self._number, failure
            )
            return False
        self._members = members
        return True

    async def _form_group(self, learner: LearnerClient, workers: Sequence[Member[Client]]) -> str | None:
        """Forms a group; the reason if that failed."""
        try:
            address, port = await learner.call(OPEN_GROUP)
        except (RuntimeError, TimeoutError) as error:
            raise SenderLost(error) from error
        width = self.rollout.tensor_parallel_size
        size = 1 + width * len(workers)

        def at_rank(rank: int) -> GroupMember:
            return GroupMember(self._number, address, port, rank, size, self.way.name, self.timeout_s)

        calls: dict[str, Awaitable[Any]] = {SENDER: learner.call(JOIN_GROUP, at_rank(0))}
        calls |= {
            member.name: member.actor.call(JOIN_GROUP_AS_WORKER, at_rank(1 + i * width))
            for i, member in enumerate(workers)
        }
        return _failure(await self._all(calls))

    async def _broadcast(
        self, bundle: WeightBundle, learner: LearnerClient, workers: Sequence[Member[Client]]
    ) -> dict[str, Any]:
        """The report or error of each worker."""
        calls: dict[str, Awaitable[Any]] = {SENDER: learner.call(SEND, self.rollout.dtype)}
        calls |= {
            member.name: self._timed(member.name, member.actor.call(RECEIVE_WEIGHTS, bundle)) for member in workers
        }
        found = await self._all(calls)
        if (failure := _failure(found)) is not None:
            self._members = []
            log.warning("version %d: a broadcast failed: %s", bundle.version, failure)
        return {member.name: found[member.name] for member in workers}

    async def _all(self, calls: dict[str, Awaitable[Any]]) -> dict[str, Any]:
        """Result or error of each call of a group, a time-out included. SenderLost if the learner's own call failed."""
        found = await outcomes(calls)
        if isinstance(cause := found[SENDER], Exception):
            self._members = []
            raise SenderLost(cause)
        return found


def _loaded_nothing(outcome: Any) -> bool:
    return isinstance(outcome, Failed) and isinstance(outcome.cause, TransferRefused)


def _failure(found: dict[str, Any]) -> str | None:
    """The learner's reason or the first error; None if all went well."""
    errors = ((name, outcome) for name, outcome in found.items() if isinstance(outcome, Exception))
    return next((f"{name}: {str(error) or 'no answer'}" for name, error in errors), found[SENDER])
