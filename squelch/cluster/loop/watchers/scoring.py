"""The coordinator's client of the scorer: offers it steps and collects its metrics.

`ScoringPace` decides which steps are scored and reports a scorer that is behind or late. The death of the scorer is
logged as an error. Its successor, which supervision starts at once, continues from the state after the last finished
scorer step. `alarms` reads the metrics when they are recorded.

    waits for                        unblocked by   on time-out or death
    at the run's last step, and at   the scorer     after `scorer.timeout_s` for each (`STOPPED_DRAIN_S` after a stop)
    its end: what is under way                      it is cancelled, and the log says so
    at a resume: its state           the scorer     after `scorer.timeout_s` it is replaced

Only the last step waits for the scorer, because no later record could hold the scorer's metrics.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from squelch.actors.messages import WeightBundle
from squelch.actors.scorer.pace import ScoringPace
from squelch.cluster.config import RunConfig
from squelch.cluster.control.actor_errors import ActorError, Died, Refused, reason_of
from squelch.cluster.control.calls import PROBE, SCORE, SCORER_RESTORE
from squelch.cluster.control.client import Client
from squelch.cluster.fleet.fleet import Fleet
from squelch.cluster.loop.persistence.run_log import RunLog
from squelch.cluster.loop.stopping import Stopping
from squelch.cluster.loop.tickets.playing import PlayedGroup
from squelch.cluster.loop.watchers.alarms import Alarms
from squelch.cluster.loop.watchers.watcher import Step, Watcher
from squelch.cluster.runs.ending import Ending
from squelch.kit.archive.store import ArchiveError
from squelch.kit.base.errors import UserError
from squelch.kit.records.records import Cluster

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)
STOPPED_DRAIN_S = 60.0
"""Most seconds for which a run that is being stopped waits for the scorer."""


class Scoring(Watcher):
    """Runs at most one scorer step and one probe evaluation at a time. Each step's record takes the metrics of at most
    one of each. At the run's last step, the older ones that are left get records of their own. `free_cores`: cancels
    all plays, so that the scorer ends sooner after a stop."""

    name = "scorer"

    def __init__(
        self,
        config: RunConfig,
        fleet: Fleet,
        run_log: RunLog,
        alarms: Alarms,
        stopping: Stopping,
        free_cores: Callable[[], Awaitable[None]],
    ) -> None:
        self.fleet, self.run_log, self.alarms = fleet, run_log, alarms
        self.stopping, self._free_cores = stopping, free_cores
        self.scored = config.scored.label
        self.timeout_s, self.start_s = config.scorer.timeout_s, config.cluster.start_timeout_s
        self.pace = ScoringPace(config.scorer.interval, config.scorer.timeout_s)
        self.scorer_state: dict[str, Any] | None = None
        """The scorer's state after its last finished scorer step."""
        self._step_metrics: deque[dict[str, float]] = deque()
        """Metrics of the scorer steps that no step has recorded yet, oldest first."""
        self._counted: Counter[str] = Counter()
        self._probe_metrics: deque[dict[str, float]] = deque()
        """Metrics of the probe evaluations that no step has recorded yet, oldest first."""
        self._task: asyncio.Task[None] | None = None
        self._withdrawn: asyncio.Task[None] | None = None
        """The scorer step under way whose metrics will be dropped."""
        self._probe: asyncio.Task[None] | None = None
        self.probing: int | None = None
        """The step whose probe evaluation is under way."""
        self._asked: int | None = None
        """The last step that a scorer was asked to score, by this process or the one before."""
        self._started = 0.0
        self._span = (0.0, 0.0)
        self._drained = 0.0

    @property
    def bundle(self) -> WeightBundle:
        """The newest weights; RuntimeError before any version is published."""
        bundle = self.fleet.published.bundle
        if bundle is None:
            raise RuntimeError("no version is published yet")
        return bundle

    # -- as a watcher ------------------------------------------------------------------------------------------------

    async def begin(self, clock: int) -> None:
        """Restores the scorer's state from the checkpoint; a scorer that does not take it is replaced."""
        scorer = self.fleet.scorer
        if self.scorer_state is None or scorer is None:
            return
        try:
            await scorer.call(SCORER_RESTORE, self.scorer_state)
        except Refused as error:
            raise UserError(f"scorer: {error.reason}") from error
        except (ActorError, TimeoutError) as error:
            scorer.kill()
            await self.replace_dead(scorer, f"it did not take the state of the last scorer step: {reason_of(error)}")

    async def before_train(self, step: Step) -> None:
        """Offers the step to the scorer, with the weights that sampled it: the groups of one environment."""
        groups = [group for group in step.groups if group.ticket.task.label == self.scored]
        if groups:
            self.offer(step.number, self.bundle, groups)

    async def end(self) -> None:
        """Waits for what is under way."""
        await self.drain()

    def rewind(self, steps: Collection[int]) -> None:
        """Forgets the metrics of steps that are retried."""
        for step in steps:
            self.withdraw(step)

    def state(self) -> dict[str, Any]:
        """The scorer's state, and the metrics and outcomes that no step has recorded yet."""
        counts = {"outcomes": self.uncounted(), "asked": self._asked}
        return {"scorer": self.scorer_state, "pending": self.pending(), **counts}

    def restore(self, state: dict[str, Any], anew: Collection[str]) -> None:
        """Restores the state, without values that are paired with other tasks or compared with other steps."""
        pending = [found for found in state["pending"] if "probe" not in anew or "probe/step" not in found]
        self._probe_metrics.extend(found for found in pending if "probe/step" in found)
        self._step_metrics.extend(found for found in pending if "probe/step" not in found)
        self._counted.subtract(state["outcomes"])
        self._asked = state["asked"]
        scorer = state["scorer"]
        if scorer is not None and "probe" in anew:
            scorer = scorer | {"probe": None, "followed": None}
        if scorer is not None and "answers" in anew:
            scorer = scorer | {"followed": None}
        if scorer is not None and "scorings" in anew:
            scorer = scorer | {"regime": {scope: {} for scope in scorer.get("regime", {})}, "before": None}
        self.scorer_state = scorer

    # -- scorer steps ------------------------------------------------------------------------------------------------

    def offer(self, step: int, bundle: WeightBundle, groups: list[PlayedGroup]) -> None:
        """Starts to score the step if it is due and the scorer is not busy with an earlier step."""
        if alarm := self.pace.check(time.time()):
            log.warning("%s", alarm)
        scorer = self.fleet.scorer
        if scorer is not None and self.pace.begin(step, time.time()):
            replaces, self._asked = self._asked == step, step
            self._task = asyncio.create_task(self._score(scorer, step, bundle, groups, replaces))

    async def _score(
        self, scorer: Client, step: int, bundle: WeightBundle, groups: list[PlayedGroup], replaces: bool
    ) -> None:
        self._started = started = time.time()
        try:
            payloads = [g.table for g in groups]
            metrics, self.scorer_state, scores = await scorer.call(SCORE, step, bundle, payloads, replaces)
        except Died as error:
            self._failed(step, started, error)
            await self.replace_dead(scorer, str(error))
        except ActorError as error:
            self._failed(step, started, error)
        else:
            self._span = (started, time.time())
            outcome = "withdrawn" if self._withdrawn is asyncio.current_task() else "done"
            self.pace.end(outcome)
            self.run_log.event("scorer", "score", *self._span, step=step, outcome=outcome)
            if outcome == "withdrawn":
                return
            self._step_metrics.append(metrics | {"scorer/step": float(step), "seconds/score": time.time() - started})
            await self._keep(step, scores)

    def withdraw(self, step: int) -> None:
        """Drops the metrics of a step whose groups were lost before they were trained on. The groups are retried, and
        the step is scored again; the scorer then forgets the effect of the first time on its state."""
        if self._step_metrics and self._step_metrics[-1]["scorer/step"] == step:
            self._step_metrics.pop()
            self.pace.withdraw()
        elif self.pace.step == step:
            self._withdrawn = self._task

    async def _keep(self, step: int, scores: pa.Table) -> None:
        """Writes the score matrices. Only readers of the run need them, so the run goes on without them."""
        try:
            await asyncio.to_thread(self.run_log.archive.write_scores, step, scores)
        except ArchiveError as error:
            log.error("the score matrices of step %d are not kept: %s", step, error)

    def probe_scorer(self, step: int) -> Client | None:
        """The scorer if it can start a probe evaluation, so that the tasks need to be played; else logs the reason and
        returns None."""
        if self._probe is not None and not self._probe.done():
            self._not_evaluated(step, time.time(), "the evaluation before is still under way")
            return None
        if self.fleet.scorer is None:
            self._not_evaluated(step, time.time(), "no scorer is left (cluster.max_restarts)")
        return self.fleet.scorer

    def probe(
        self, step: int, bundle: WeightBundle, groups: list[PlayedGroup], clusters: Mapping[str, Cluster]
    ) -> None:
        """Starts a probe evaluation on the groups of its tasks and their `clusters` of hard negatives, if the scorer
        can still start one."""
        scorer = self.probe_scorer(step)
        if scorer is not None:
            self.probing = step
            self._probe = asyncio.create_task(self._evaluate_probe(scorer, step, bundle, groups, clusters))

    def _not_evaluated(self, step: int, started: float, cause: str) -> None:
        log.error("the fixed probe was not evaluated after step %d: %s", step, cause)
        self.run_log.event("scorer", "probe_failed", started, time.time(), step=step, cause=cause)

    async def _evaluate_probe(
        self,
        scorer: Client,
        step: int,
        bundle: WeightBundle,
        groups: list[PlayedGroup],
        clusters: Mapping[str, Cluster],
    ) -> None:
        started = time.time()
        try:
            metrics, self.scorer_state = await scorer.call(PROBE, step, bundle, [g.table for g in groups], clusters)
            self._probe_metrics.append(metrics)
            self.probing = None
        except (ActorError, TimeoutError) as error:
            self.probing = None
            self._not_evaluated(step, started, str(error))
            if isinstance(error, Died):
                await self.replace_dead(scorer, str(error))
        else:
            self.run_log.event("scorer", "probe", started, time.time(), step=step)

    async def replace_dead(self, dead: Client, cause: str) -> None:
        """Replaces a dead scorer by a successor with the state of the last finished scorer step. Only the first call
        for `dead` does so. A successor that does not take the state is replaced too, as long as restarts are left."""
        while self.fleet.scorer is dead:
            await self.fleet.replace_scorer(cause)
            successor = self.fleet.scorer
            if successor is None or self.scorer_state is None:
                return
            try:
                await successor.call(SCORER_RESTORE, self.scorer_state)
            except (ActorError, TimeoutError) as error:
                dead, cause = successor, f"it did not take the state of the last scorer step: {reason_of(error)}"
                dead.kill()

    def spans(self, now: float) -> list[tuple[float, float]]:
        """The (start, end) of the last scorer step, and of the one under way until `now`, unix seconds."""
        return [self._span, (self._started, now)] if self._busy() else [self._span]

    def _busy(self) -> bool:
        return self._task is not None and not self._task.done()

    def _failed(self, step: int, started: float, error: ActorError) -> None:
        outcome = "refused" if isinstance(error, Refused) else "failed"
        log.error("%s", self.pace.end(outcome, str(error)))
        self.run_log.event("scorer", outcome, started, time.time(), step=step, cause=str(error))

    # -- metrics -----------------------------------------------------------------------------------------------------

    def metrics(self, step: Step) -> dict[str, float]:
        """Metrics of the oldest finished scorer step and the oldest probe evaluation that no step has recorded yet, and
        the outcomes counted since the last call."""
        for span in self.spans(time.time()):
            self.run_log.busy(*span)
        waited, self._drained = self._drained, 0.0
        news = self.uncounted()
        self._counted = Counter(self.pace.outcomes)
        taken = self._step_metrics.popleft() if self._step_metrics else {}
        taken |= self._probe_metrics.popleft() if self._probe_metrics else {}
        counts = {f"scorer/{outcome}": float(n) for outcome, n in news.items()}
        return taken | counts | {"wait/coordinator/scorer": waited}

    def uncounted(self) -> dict[str, int]:
        """The outcomes that no step has counted yet."""
        return dict(self.pace.outcomes - self._counted)

    def take_earlier(self) -> list[dict[str, float]]:
        """Metrics of every finished scorer step and probe evaluation that no step has recorded yet, without the newest
        of each, oldest first. The run's last record takes the newest; no record comes after it."""
        scorer_steps = [self._step_metrics.popleft() for _ in range(len(self._step_metrics) - 1)]
        return scorer_steps + [self._probe_metrics.popleft() for _ in range(len(self._probe_metrics) - 1)]

    async def drain_last(self, step: int) -> None:
        """Waits for what is under way before the record of the run's last step. That record holds one scorer step and
        one probe evaluation, the newest; every earlier one gets a record of its own before it. The seconds of the wait
        do not count as part of the step."""
        started = time.time()
        if self.stopping.requested:
            await self._free_cores()
        await self.drain()
        for found in self.take_earlier():
            self.alarms.recorded_alone(found)
            self.run_log.scored(step, found)
        self.run_log.busy(started, time.time())
        self._drained += time.time() - started

    async def drain(self) -> None:
        """Waits for the scorer step and the probe evaluation under way, before the last record and at the end of a run:
        at most `scorer.timeout_s` for each, since the scorer does one after the other, and at most `STOPPED_DRAIN_S` if
        the run is being stopped."""
        under_way = {task for task in (self._task, self._probe) if task is not None and not task.done()}
        if not under_way:
            return
        self.run_log.doing("waiting for the scorer")
        allowed = self.timeout_s * len(under_way)
        bound = min(allowed, STOPPED_DRAIN_S) if self.stopping.is_from_outside else allowed
        _, late = await asyncio.wait(under_way, timeout=bound)
        for task in late:
            task.cancel()
            log.warning("the scorer did not finish its last step within %g s", bound)

    def pending(self) -> list[dict[str, float]]:
        """Metrics of finished scorer steps and probe evaluations that no step has recorded yet, oldest first."""
        return [*self._step_metrics, *self._probe_metrics]


class LastScoring(Watcher):
    """Waits for the scorer at the run's last step, after the last probe evaluation was started."""

    def __init__(self, scoring: Scoring) -> None:
        self.scoring = scoring

    async def after_train(self, step: Step) -> Ending | None:
        """Waits if this is the last step."""
        if step.is_last:
            await self.scoring.drain_last(step.number)
        return None
