"""Scaling within a run: takes requests, decides for `rollout.count: auto`, and notices nodes that are taken away.
Learner ranks on such nodes move with a checkpoint, between two steps (`cluster.loop.coordinator`).

    task        waits for                      unblocked by              on time-out or death
    requests    the endpoint's requests        `squelch scale`, POLL_S   it asks again; an endpoint that died, or that
                                                                         supervision ended as hung, is replaced
    notices     the next look at the nodes     NOTICE_S                  a warning; it looks again
    decisions   the record of a step           coordinator               -

The tasks run beside the coordinator, which waits for none of them; `cluster.fleet.pool` carries out what is decided. An
error that no actor's death or lateness explains is a bug: it ends the run at once with its cause. A request is checked
against its bounds and against what the cluster has, and answered; the fleet then changes in the background. A request
for a number that `rollout.count: auto` decides on holds until the next decision.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, TypeVar

from squelch.cluster.config import RunConfig
from squelch.cluster.control.actor_errors import ActorError, Died, reason_of
from squelch.cluster.control.autoscaling import Autoscaling
from squelch.cluster.control.calls import ANSWER, TAKE
from squelch.cluster.control.client import Client, loop_time
from squelch.cluster.control.membership import MemberState as State
from squelch.cluster.control.rank_client import LEARNER, LearnerClient
from squelch.cluster.control.scaling import WORDS, Answer, By, Kind, Request, packed, refusal, unpacked_request
from squelch.cluster.fleet.fleet import Fleet
from squelch.cluster.fleet.waiting import bounded
from squelch.cluster.loop.watchers.watcher import Step, Watcher

log = logging.getLogger(__name__)
T = TypeVar("T")
POLL_S = 20.0
RETRY_S = 1.0
"""Seconds before a control endpoint that failed is asked again."""
NOTICE_S = 2.0
"""Seconds between two looks at the nodes."""
LACK_S = 30.0
"""Seconds within which the cluster must say what it has."""


class Scaling(Watcher):
    """Requests for other numbers of rollout workers and environment actors, from whomever they come."""

    name = "scaling"

    def __init__(self, config: RunConfig, fleet: Fleet, say: Callable[[str], None]) -> None:
        self.config, self.fleet, self.say = config, fleet, say
        rollout = config.rollout
        self.auto: Autoscaling | None = None
        if rollout.count == "auto" and rollout.max_count is not None:
            self.auto = Autoscaling(rollout.min_count, rollout.max_count)
        self._resumed = 0
        """The number of rollout workers that an earlier process had, if the run decides on it."""
        self._last: float | None = None
        self._deciding: asyncio.Task[None] | None = None
        self._noticed: LearnerClient | None = None
        """The learner that was last reported to lose a node."""
        self._one_at_a_time = asyncio.Lock()

    # -- requests ------------------------------------------------------------------------------------------------------

    async def request(self, request: Request) -> Answer:
        """Checks a request, changes the fleet if the request can be granted, and answers it."""
        async with self._one_at_a_time:
            kind = request.kind
            if why := refusal(self.config, kind, request.count) or await self._lacking(request):
                return Answer(False, why)
            before = self.fleet.pools[kind].wanted
            self.fleet.pools[kind].scale(request)
            text = f"{WORDS[kind]}: {before} -> {request.count}"
            self.say(f"{text} ({request.reason or f'asked by {request.by.value}'})")
            return Answer(True, f"{text}{_outlook(before, request)}")

    async def _lacking(self, request: Request) -> str | None:
        """The resources that the cluster lacks for a request for more members; None if it has them."""
        counts = {**self.fleet.wanted(), request.kind: request.count}
        if request.count <= self.fleet.pools[request.kind].wanted:
            return None
        try:
            return await bounded(self.fleet.actors.lacking(counts), LACK_S)
        except (ActorError, TimeoutError) as error:
            return f"the cluster did not say within {LACK_S:g} s what it has ({error}); try again"

    # -- tasks ---------------------------------------------------------------------------------------------------------

    async def beside(self, work: Awaitable[T]) -> T:
        """Awaits `work` and takes requests and notices meanwhile. Raises what the tasks raise, a bug, and cancels the
        work then."""
        self.fleet.endpoint = self.fleet.actors.control_endpoint()
        run = asyncio.ensure_future(work)
        own = {asyncio.create_task(self._requests(self.fleet.endpoint)), asyncio.create_task(self._notices())}
        try:
            await _ended(run, own)
            return run.result()
        finally:
            for task in (run, *own):
                task.cancel()
            await asyncio.gather(run, *own, return_exceptions=True)
            if self.fleet.endpoint is not None:
                self.fleet.endpoint.kill()
            await self._end_node_request()

    async def _requests(self, endpoint: Client) -> None:
        while True:
            try:
                taken = await endpoint.call(TAKE, POLL_S)
            except (ActorError, TimeoutError) as error:
                if isinstance(error, Died) or endpoint in self.fleet.dead:
                    endpoint = await self.fleet.replace_endpoint(reason_of(error))
                else:
                    log.info("the control endpoint did not answer: %s", error)
                    await asyncio.sleep(RETRY_S)
                continue
            for number, data in taken:
                await self._answer(endpoint, number, await self._reply(data))

    async def _reply(self, data: Mapping[str, Any]) -> Answer:
        """The answer to a request that arrived as plain data."""
        try:
            request = unpacked_request(data)
        except ValueError as error:
            return Answer(False, str(error))
        return await self.request(request)

    async def _answer(self, endpoint: Client, number: int, answer: Answer) -> None:
        """Hands an answer to the endpoint. If that fails, only its caller misses it."""
        try:
            await endpoint.call(ANSWER, number, packed(answer))
        except (ActorError, TimeoutError) as error:
            log.warning("the control endpoint did not take an answer (%s): %s", answer.text, error)

    async def _notices(self) -> None:
        actors = self.fleet.actors
        while True:
            await asyncio.sleep(NOTICE_S)
            try:
                learner = self.fleet.learner
                leaving = await bounded(actors.leaving(), LACK_S)
                self.fleet.notice(leaving)
                if LEARNER in leaving and learner is not self._noticed:
                    self._notice_learner(learner, leaving[LEARNER])
            except (ActorError, TimeoutError) as error:
                log.warning("the cluster did not say which nodes will be taken away: %s", error)
            if self.fleet.complete():
                await self._end_node_request()

    async def _end_node_request(self) -> None:
        """Ends the request to the autoscaler, which would otherwise hold the nodes for ever, even for members that were
        given up or are no longer wanted, and after the run."""
        try:
            await bounded(self.fleet.actors.end_node_request(), LACK_S)
        except (ActorError, TimeoutError) as error:
            log.warning("the autoscaler may keep the nodes that this run asked for: %s", error)

    def _notice_learner(self, learner: LearnerClient | None, seconds: float) -> None:
        self._noticed, now = learner, time.time()
        left = f"in {seconds:.0f} s" if seconds < math.inf else "soon"
        self.say(f"a node of learner ranks will be taken away {left}")
        self.fleet.on_event(LEARNER, "preempted", now, now, seconds_left=seconds if seconds < math.inf else None)

    def learner_leaves(self) -> bool:
        """Whether a node of the present learner's ranks will be taken away."""
        return self._noticed is not None and self._noticed is self.fleet.learner

    # -- decisions -----------------------------------------------------------------------------------------------------

    async def begin(self, clock: int) -> None:
        """Asks for as many rollout workers as the process before had."""
        if self._resumed > self.fleet.worker_pool.wanted:
            self._deciding = asyncio.create_task(self._decided(self._resumed, "as at the checkpoint"))

    def state(self) -> dict[str, Any]:
        """The wanted number of rollout workers."""
        return {"rollout_workers": self.fleet.worker_pool.wanted}

    def restore(self, state: dict[str, Any], anew: Collection[str]) -> None:
        """A run with `rollout.count: auto` goes on with its number, within the present bounds."""
        self._resumed = min(state["rollout_workers"], self.config.rollout.max_count or 0) if self.auto else 0

    def metrics(self, step: Step) -> dict[str, float]:
        """Takes a step that is over, and decides."""
        now = loop_time()
        seconds, self._last = (now - self._last if self._last is not None else 0.0), now
        workers = len(self.fleet.workers.members(State.HEALTHY))
        load = step.window.times.load(workers, seconds) if seconds > 0 else None
        flat = self.fleet.take_scalings()
        if self._deciding is not None and self._deciding.done():
            self._deciding.result()
        if load is None:
            return flat
        flat |= {"scaling/wait_share": min(1.0, load.waited_s / seconds), "scaling/queue_age": load.queued_s}
        if self.auto is not None and workers == self.fleet.worker_pool.wanted:
            decision = self.auto.step(load)
            if decision is not None:
                self._deciding = asyncio.create_task(self._decided(decision.count, decision.reason))
        return flat

    async def _decided(self, count: int, reason: str) -> None:
        """Carries out a decision. One that cannot be granted is noted as an event, and not repeated soon."""
        answer = await self.request(Request(Kind.ROLLOUT, count, by=By.AUTO, reason=reason))
        if not answer.accepted and self.auto is not None:
            self.auto.refused(count)
            log.warning("%d rollout workers were wanted (%s) and are not available: %s", count, reason, answer.text)


async def _ended(run: asyncio.Future[T], tasks: set[asyncio.Task[None]]) -> None:
    """Returns once `run` has ended; raises the first error of the tasks beside it."""
    while not run.done():
        done, _ = await asyncio.wait({run, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        tasks = tasks - done
        for task in done - {run}:
            task.result()


def _outlook(before: int, request: Request) -> str:
    """When the change will have happened."""
    if request.count > before:
        more = "gets groups once it has the current weights" if request.kind is Kind.ROLLOUT else "gets groups once up"
        return f"; each new one {more}"
    if request.count < before:
        how = "the others retry their groups" if request.at_once else "each leaves when its groups end"
        return f"; {how}"
    return "; nothing changes"
