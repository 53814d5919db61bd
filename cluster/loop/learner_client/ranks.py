"""Calls to all learner ranks together, each bounded and watched. A failed call is not repeated here.

    call                 bound                             signs that it is not hung (`cluster.control.progress`)
    train, imitate,      `learner.step_timeout_s`, for     micro-batches; answers until the first micro-batch of the
    decompose            decompose for a group             group's life, and with `learner.compile`
    publish              `learner.step_timeout_s`          answers
    start                `learner.start_timeout_s`         none: loading a model or a file may keep a process from
    load, save, export   `learner.step_timeout_s`          answering, so that only the bound counts. All but start
                                                           begin once every rank has answered

The ranks bound each call themselves and name the late one; the bound here comes `GRACE_S` later, should they not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from squelch.actors.messages import Imitation, StepReport, WeightBundle
from squelch.cluster.config import RunConfig
from squelch.cluster.control.actor_errors import ActorError
from squelch.cluster.control.progress import Patience, ProgressWatch
from squelch.cluster.control.protocols import LEARNER, Learner, Payload
from squelch.cluster.fleet.fleet import Fleet
from squelch.cluster.fleet.supervision import Watchdog, poll_s
from squelch.cluster.fleet.waiting import bounded
from squelch.learner.batching import Row
from squelch.learner.decomposition.statistics import Decomposition

T = TypeVar("T")
log = logging.getLogger(__name__)
GRACE_S = 10.0
ROOM_S = 30.0
"""Seconds within which the cluster must say what is free."""
ANSWERS = 6
"""Times that ranks which do not answer are asked within the limit: on a machine under load an answer takes seconds."""


class Signs(Enum):
    """What shows that a call is not hung."""

    MARKS = "marks"
    ANSWERS = "answers"
    NONE = "none"


class Ranks:
    """The fleet's learner. Every call raises `Refused` for bad input, and after any other error (`Died`, `Failed`,
    TimeoutError) the ranks are of no more use."""

    def __init__(self, config: RunConfig, fleet: Fleet, watchdog: Watchdog) -> None:
        self.config, self.fleet, self.watchdog = config.learner, fleet, watchdog
        self.dtype = config.rollout.dtype
        self.poll_s = poll_s(config.learner.hung_after_s)
        self.answer_s = config.learner.hung_after_s / ANSWERS

    @property
    def learner(self) -> Learner:
        """The fleet's learner; RuntimeError if it was not started."""
        if self.fleet.learner is None:
            raise RuntimeError("the learner was not started")
        return self.fleet.learner

    async def start(self) -> None:
        """Starts a new group."""
        await self._watched("start", self.learner.start(), self.config.start_timeout_s, Signs.NONE)

    async def load(self, path: Path) -> dict[str, Any]:
        """Loads the checkpoint in the folder `path`; returns the loop's state in it."""
        await self._answered("load")
        return await self._watched("load", self.learner.load(path.resolve()), self.config.step_timeout_s, Signs.NONE)

    async def train(self, step: int, payloads: list[Payload], ids: list[str], loss_scale: float) -> StepReport:
        """One training step."""
        call = self.learner.train_step(step, payloads, ids, loss_scale)
        return await self._watched("train_step", call, self.config.step_timeout_s, self._passes())

    async def imitate(self, step: int, rows: Sequence[Row]) -> Imitation:
        """One supervised optimizer step on these rows."""
        call = self.learner.imitate(step, rows)
        return await self._watched("imitate", call, self.config.step_timeout_s, self._passes())

    async def imitation_loss(self, rows: Sequence[Row]) -> float:
        """The mean loss of these rows."""
        call = self.learner.imitation_loss(rows)
        return await self._watched("imitation_loss", call, self.config.step_timeout_s, self._passes())

    async def decompose(self, payloads: list[Payload], ids: list[str]) -> Decomposition:
        """The gradient decomposition of these groups."""
        bound = self.config.step_timeout_s * max(1, len(ids))
        return await self._watched("decompose", self.learner.decompose(payloads, ids), bound, self._passes())

    async def publish(self, version: int) -> WeightBundle:
        """Gathers the current weights as `version`."""
        call = self.learner.publish(version, self.dtype)
        return await self._watched("publish", call, self.config.step_timeout_s, Signs.ANSWERS)

    async def save(self, path: Path, loop: Mapping[str, Any]) -> None:
        """Writes a checkpoint."""
        await self._answered("save")
        call = self.learner.save(path.resolve(), dict(loop))
        await self._watched("save", call, self.config.step_timeout_s, Signs.NONE)

    async def export(self, path: Path) -> None:
        """Writes the policy as a Hugging Face folder."""
        await self._answered("export")
        await self._watched("export", self.learner.export(path.resolve()), self.config.step_timeout_s, Signs.NONE)

    async def lost(self) -> NoReturn:
        """Raises `Died` once a rank's process is gone."""
        await self.learner.lost()

    async def check(self) -> None:
        """Raises `Died` if a rank's process is gone."""
        await self.learner.progress(self.poll_s)

    async def room(self) -> int | None:
        """Number of ranks for which the cluster has room, see `Actors.room_for_ranks`; None if it does not say."""
        try:
            return await bounded(self.fleet.actors.room_for_ranks(), ROOM_S)
        except (ActorError, TimeoutError) as error:
            log.warning("the cluster did not say where learner ranks have room: %s", error)
            return None

    def _passes(self) -> Signs:
        """The signs of a call with micro-batches. A compiled layer may be compiled again for new shapes at any time."""
        return Signs.ANSWERS if self.config.compile else Signs.MARKS

    async def _answered(self, what: str) -> None:
        """Returns once every rank has answered: one that froze since its last call is noticed here, as the call itself
        could only run into its bound. `what`: the call that follows."""
        now = asyncio.get_running_loop().time
        watch = self._watch(Signs.ANSWERS)
        try:
            while None in (found := await self.learner.progress(self.answer_s)):
                watch.see(found, now())
                self.watchdog.see(LEARNER, watch, now())
                if late := watch.hung(now()):
                    raise TimeoutError(f"{what}: {late}")
        finally:
            self.watchdog.forget(LEARNER)

    def _watch(self, signs: Signs) -> ProgressWatch:
        patience = Patience(self.config.hung_after_s, "micro-batch", "learner.hung_after_s")
        names = [f"learner rank {rank}" for rank in range(self.learner.ranks)]
        return ProgressWatch(names, patience, asyncio.get_running_loop().time(), signs is Signs.ANSWERS)

    async def _watched(self, what: str, call: Awaitable[T], timeout_s: float, signs: Signs) -> T:
        now = asyncio.get_running_loop().time
        deadline = now() + timeout_s + GRACE_S
        watch = self._watch(signs)
        task = asyncio.ensure_future(call)
        try:
            while not (await asyncio.wait({task}, timeout=min(self.poll_s, deadline - now())))[0]:
                if now() >= deadline:
                    raise TimeoutError(f"the learner did not finish {what} within {timeout_s:g} s")
                if signs is not Signs.NONE:
                    await self._look(task, watch)
                    if late := watch.hung(now()):
                        raise TimeoutError(f"{what}: {late}")
            return task.result()
        finally:
            self.watchdog.forget(LEARNER)
            if not task.cancel() and not task.cancelled():
                task.exception()  # it may have failed while its ranks were asked for their progress

    async def _look(self, task: asyncio.Future[Any], watch: ProgressWatch) -> None:
        """Asks the ranks for their progress, unless the call ends before they answer."""
        now = asyncio.get_running_loop().time
        question = asyncio.ensure_future(self.learner.progress(self.answer_s))
        await asyncio.wait({task, question}, return_when=asyncio.FIRST_COMPLETED)
        if not question.done():
            question.cancel()
            return
        watch.see(question.result(), now())
        self.watchdog.see(LEARNER, watch, now())
