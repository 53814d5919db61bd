"""The coordinator's client of the scorer: offers it steps and collects its metrics.

`ScoringPace` decides which steps are scored and reports a scorer that is behind or late. The death of the scorer is
logged as an error; its successor, which supervision starts at once, continues from the state after the last finished
scoring. `alarms` sees what was found once it is recorded.

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
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Any

from squelch.actors.archive.store import ArchiveError
from squelch.actors.messages import WeightBundle
from squelch.actors.scorer.pace import ScoringPace
from squelch.cluster.config import RunConfig
from squelch.cluster.control.actor_errors import ActorError, Died, Refused, reason_of
from squelch.cluster.control.calls import PROBE, SCORE, SCORER_RESTORE
from squelch.cluster.control.client import Client
from squelch.cluster.errors import UserError
from squelch.cluster.fleet.fleet import Fleet
from squelch.cluster.loop.persistence.journal import Journal
from squelch.cluster.loop.stopping import Stopping
from squelch.cluster.loop.tickets.playing import PlayedGroup
from squelch.cluster.loop.watchers.alarms import Alarms
from squelch.cluster.loop.watchers.watcher import Step, Watcher
from squelch.cluster.runs.ending import Ending

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)
STOPPED_DRAIN_S = 60.0
"""Most seconds that a run which was told to stop waits for the scorer."""


class Scoring(Watcher):
    """Runs at most one scoring and one evaluation of the probe at a time. Their metrics go into the next step's record
    that has none yet; of those that wait at the run's last step, the older ones into records of their own.
    `free_cores`: cancels what is played, so that the scorer ends sooner after a stop."""

    name = "scorer"

    def __init__(
        self,
        config: RunConfig,
        fleet: Fleet,
        journal: Journal,
        alarms: Alarms,
        stopping: Stopping,
        free_cores: Callable[[], Awaitable[None]],
    ) -> None:
        self.fleet, self.journal, self.alarms = fleet, journal, alarms
        self.stopping, self._free_cores = stopping, free_cores
        self.timeout_s, self.start_s = config.scorer.timeout_s, config.cluster.start_timeout_s
        self.pace = ScoringPace(config.scorer.interval, config.scorer.timeout_s)
        self.scorer_state: dict[str, Any] | None = None
        """The scorer's state after its last finished scoring."""
        self._figures: deque[dict[str, float]] = deque()
        """Figures of the scorings that no step has recorded yet, oldest first."""
        self._told: Counter[str] = Counter()
        self._probes: deque[dict[str, float]] = deque()
        """Figures of the readings of the fixed probe that no step has recorded yet, oldest first."""
        self._task: asyncio.Task[None] | None = None
        self._withdrawn: asyncio.Task[None] | None = None
        """The scoring under way whose figures are of no use any more."""
        self._probe: asyncio.Task[None] | None = None
        self.probing: int | None = None
        """The step whose reading of the fixed probe has neither ended nor failed."""
        self._asked: int | None = None
        """The step that a scorer was asked for last, by this process or the one before."""
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
        """Hands the scorer the state of the process before; a scorer that does not take it is replaced."""
        scorer = self.fleet.scorer
        if self.scorer_state is None or scorer is None:
            return
        try:
            await scorer.call(SCORER_RESTORE, self.scorer_state)
        except Refused as error:
            raise UserError(f"scorer: {error.reason}") from error
        except (ActorError, TimeoutError) as error:
            scorer.kill()
            await self.succeed(scorer, f"it did not take the state of the last scoring: {reason_of(error)}")

    async def before_train(self, step: Step) -> None:
        """Offers the step under the weights that sampled it."""
        self.offer(step.number, self.bundle, step.groups)

    async def end(self) -> None:
        """Waits for what is under way."""
        await self.drain()

    def rewind(self, steps: Collection[int]) -> None:
        """Forgets the metrics of steps that are played again."""
        for step in steps:
            self.withdraw(step)

    def state(self) -> dict[str, Any]:
        """The scorer's state; the metrics that no step has recorded, and the outcomes that no step has counted, yet."""
        counts = {"outcomes": self.untold(), "asked": self._asked}
        return {"scorer": self.scorer_state, "pending": self.pending(), **counts}

    def restore(self, state: dict[str, Any], anew: Collection[str]) -> None:
        """What is paired with other tasks, or compared with other steps, begins anew."""
        pending = [found for found in state["pending"] if "probe" not in anew or "probe/step" not in found]
        self._probes.extend(found for found in pending if "probe/step" in found)
        self._figures.extend(found for found in pending if "probe/step" not in found)
        self._told.subtract(state["outcomes"])
        self._asked = state["asked"]
        scorer = state["scorer"]
        if scorer is not None and "probe" in anew:
            scorer = scorer | {"probe": None, "followed": None}
        if scorer is not None and "answers" in anew:
            scorer = scorer | {"followed": None}
        if scorer is not None and "scorings" in anew:
            scorer = scorer | {"regime": {scope: {} for scope in scorer.get("regime", {})}, "before": None}
        self.scorer_state = scorer

    # -- scorings ----------------------------------------------------------------------------------------------------

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
            figures, self.scorer_state, scores = await scorer.call(SCORE, step, bundle, payloads, replaces)
        except Died as error:
            self._failed(step, started, error)
            await self.succeed(scorer, str(error))
        except ActorError as error:
            self._failed(step, started, error)
        else:
            self._span = (started, time.time())
            outcome = "withdrawn" if self._withdrawn is asyncio.current_task() else "done"
            self.pace.end(outcome)
            self.journal.event("scorer", "score", *self._span, step=step, outcome=outcome)
            if outcome == "withdrawn":
                return
            self._figures.append(figures | {"scorer/step": float(step), "seconds/score": time.time() - started})
            await self._keep(step, scores)

    def withdraw(self, step: int) -> None:
        """Forgets the figures of a step whose groups were lost before they were trained on. They are played again, and
        what is scored then is the step's scoring. The scorer then forgets what the first one left in its state."""
        if self._figures and self._figures[-1]["scorer/step"] == step:
            self._figures.pop()
            self.pace.withdraw()
        elif self.pace.step == step:
            self._withdrawn = self._task

    async def _keep(self, step: int, scores: pa.Table) -> None:
        """Writes the score matrices. Only readers of the run need them, so the run goes on without them."""
        try:
            await asyncio.to_thread(self.journal.archive.write_scores, step, scores)
        except ArchiveError as error:
            log.error("the score matrices of step %d are not kept: %s", step, error)

    def probe_reader(self, step: int) -> Client | None:
        """The scorer, if it can begin a reading of the fixed probe, so that its tasks are worth playing; else says why
        not."""
        if self._probe is not None and not self._probe.done():
            self._unread(step, time.time(), "the reading before is still under way")
            return None
        if self.fleet.scorer is None:
            self._unread(step, time.time(), "no scorer is left (cluster.max_restarts)")
        return self.fleet.scorer

    def probe(self, step: int, bundle: WeightBundle, groups: list[PlayedGroup]) -> None:
        """Starts a reading of the fixed probe, if it still has a reader; `groups`: its tasks'."""
        scorer = self.probe_reader(step)
        if scorer is not None:
            self.probing = step
            self._probe = asyncio.create_task(self._read_probe(scorer, step, bundle, groups))

    def _unread(self, step: int, started: float, cause: str) -> None:
        log.error("the fixed probe was not read after step %d: %s", step, cause)
        self.journal.event("scorer", "probe_failed", started, time.time(), step=step, cause=cause)

    async def _read_probe(self, scorer: Client, step: int, bundle: WeightBundle, groups: list[PlayedGroup]) -> None:
        started = time.time()
        try:
            figures, self.scorer_state = await scorer.call(PROBE, step, bundle, [g.table for g in groups])
            self._probes.append(figures)
            self.probing = None
        except (ActorError, TimeoutError) as error:
            self.probing = None
            self._unread(step, started, str(error))
            if isinstance(error, Died):
                await self.succeed(scorer, str(error))
        else:
            self.journal.event("scorer", "probe", started, time.time(), step=step)

    async def succeed(self, dead: Client, cause: str) -> None:
        """Puts a successor in the place of a dead scorer, with the state of the last finished scoring. The first call
        for `dead` does so, later calls do nothing. A successor that does not take the state is replaced too, as long as
        restarts are left."""
        while self.fleet.scorer is dead:
            await self.fleet.replace_scorer(cause)
            successor = self.fleet.scorer
            if successor is None or self.scorer_state is None:
                return
            try:
                await successor.call(SCORER_RESTORE, self.scorer_state)
            except (ActorError, TimeoutError) as error:
                dead, cause = successor, f"it did not take the state of the last scoring: {reason_of(error)}"
                dead.kill()

    def spans(self, now: float) -> list[tuple[float, float]]:
        """The (start, end) of the last scoring, and of the scoring under way until `now`, unix seconds."""
        return [self._span, (self._started, now)] if self._busy() else [self._span]

    def _busy(self) -> bool:
        return self._task is not None and not self._task.done()

    def _failed(self, step: int, started: float, error: ActorError) -> None:
        outcome = "refused" if isinstance(error, Refused) else "failed"
        log.error("%s", self.pace.end(outcome, str(error)))
        self.journal.event("scorer", outcome, started, time.time(), step=step, cause=str(error))

    # -- what was found ----------------------------------------------------------------------------------------------

    def metrics(self, step: Step) -> dict[str, float]:
        """Those of the oldest finished scoring, and of the oldest evaluation of the probe, that were not taken yet, and
        the outcomes counted since the last call."""
        for span in self.spans(time.time()):
            self.journal.busy(*span)
        waited, self._drained = self._drained, 0.0
        news = self.untold()
        self._told = Counter(self.pace.outcomes)
        taken = self._figures.popleft() if self._figures else {}
        taken |= self._probes.popleft() if self._probes else {}
        counts = {f"scorer/{outcome}": float(n) for outcome, n in news.items()}
        return taken | counts | {"wait/coordinator/scorer": waited}

    def untold(self) -> dict[str, int]:
        """The outcomes that no step has counted yet."""
        return dict(self.pace.outcomes - self._told)

    def take_earlier(self) -> list[dict[str, float]]:
        """Figures of every finished scoring, and of every reading of the probe, that was not taken yet but the newest
        of each, oldest first. The run's last record takes the newest; no record comes after it."""
        scorings = [self._figures.popleft() for _ in range(len(self._figures) - 1)]
        return scorings + [self._probes.popleft() for _ in range(len(self._probes) - 1)]

    async def drain_last(self, step: int) -> None:
        """Waits for what is under way before the record of the run's last step, which holds one scoring and one
        evaluation of the probe: of each, every finished one but the newest gets a record of its own before it. The
        seconds of the wait do not count as part of the step."""
        started = time.time()
        if self.stopping.asked:
            await self._free_cores()
        await self.drain()
        for found in self.take_earlier():
            self.alarms.recorded_alone(found)
            self.journal.scored(step, found)
        self.journal.busy(started, time.time())
        self._drained += time.time() - started

    async def drain(self) -> None:
        """Waits for the scoring and the reading of the probe under way, before the last record and at the end of a run:
        at most `scorer.timeout_s` for each, since the scorer does them one after the other, and at most
        `STOPPED_DRAIN_S` if the run was told to stop."""
        under_way = {task for task in (self._task, self._probe) if task is not None and not task.done()}
        if not under_way:
            return
        allowed = self.timeout_s * len(under_way)
        bound = min(allowed, STOPPED_DRAIN_S) if self.stopping.is_from_outside else allowed
        _, late = await asyncio.wait(under_way, timeout=bound)
        for task in late:
            task.cancel()
            log.warning("the scorer did not finish its last step within %g s", bound)

    def pending(self) -> list[dict[str, float]]:
        """Figures of finished scorings and readings that no step has recorded yet, oldest first."""
        return [*self._figures, *self._probes]


class LastScoring(Watcher):
    """Waits for the scorer at the run's last step, after the probe's tasks were handed to it."""

    def __init__(self, scoring: Scoring) -> None:
        self.scoring = scoring

    async def after_train(self, step: Step) -> Ending | None:
        """Waits if this is the last step."""
        if step.is_last:
            await self.scoring.drain_last(step.number)
        return None
