"""The coordinator's side of the scorer: offers it steps and collects its figures. It waits for the scorer only at the
end of the run.

`ScoringPace` decides which steps are scored and reports a scorer that is behind or late. The death of the scorer is
logged as an error; its successor, which supervision starts at once, continues from the state after the last finished
scoring. The alarms (`actors.diagnosis.alarm`, `probe_alarm`) run here, because the first needs the rewards too. While
they see a fall, or the reasoning is in a bad state (`actors.diagnosis.soundness`), the newest checkpoint from before it
is kept, so that a new run can start from there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from squelch.actors.archive.store import ArchiveError
from squelch.actors.diagnosis.alarm import DependenceAlarm, scoring_of
from squelch.actors.diagnosis.probe_alarm import WORDS, ProbeAlarm
from squelch.actors.diagnosis.regime import MUTE
from squelch.actors.diagnosis.soundness import UNTRUE, Soundness
from squelch.actors.messages import WeightBundle
from squelch.actors.scorer.pace import ScoringPace
from squelch.cluster.config import RunConfig
from squelch.cluster.control.actor_errors import ActorError, Died, Refused, reason_of
from squelch.cluster.control.protocols import Archive, Scorer
from squelch.cluster.fleet.fleet import Fleet
from squelch.cluster.fleet.waiting import bounded
from squelch.cluster.loop.persistence.state import checkpoints, newest_until
from squelch.cluster.loop.tickets.playing import PlayedGroup

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)
STOPPED_DRAIN_S = 60.0
"""Most seconds that a run which was told to stop waits for the scorer."""


class Scoring:
    """Runs at most one scoring and one reading of the probe at a time. Their figures go into the next step's record
    that has none yet; of those that wait at the run's last step, the older ones into records of their own."""

    def __init__(self, config: RunConfig, fleet: Fleet, archive: Archive, say: Callable[[str], None]) -> None:
        self.say, self.alarm, self.probe_alarm = say, DependenceAlarm(), ProbeAlarm()
        self.timeout_s, self.fleet, self.archive = config.scorer.timeout_s, fleet, archive
        self.run_dir = config.run_dir
        self.start_s = config.cluster.start_timeout_s
        self.pace = ScoringPace(config.scorer.interval, config.scorer.timeout_s)
        self.state: dict[str, Any] | None = None
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
        self._soundness = Soundness()
        self._blind: tuple[str, ...] = ()
        """Figures of the probe's alarm that the last reading did not know; a resumed run tells of them again."""
        self._started = 0.0
        self._span = (0.0, 0.0)

    def offer(self, step: int, bundle: WeightBundle, groups: list[PlayedGroup]) -> None:
        """Starts to score the step if it is due and the scorer is not busy with an earlier step."""
        if alarm := self.pace.check(time.time()):
            log.warning("%s", alarm)
        scorer = self.fleet.scorer
        if scorer is not None and self.pace.begin(step, time.time()):
            self._task = asyncio.create_task(self._score(scorer, step, bundle, groups))

    async def _score(self, scorer: Scorer, step: int, bundle: WeightBundle, groups: list[PlayedGroup]) -> None:
        self._started = started = time.time()
        try:
            figures, self.state, scores = await scorer.score(step, bundle, [g.table for g in groups])
        except Died as error:
            self._failed(step, started, error)
            await self.succeed(scorer, str(error))
        except ActorError as error:
            self._failed(step, started, error)
        else:
            self._span = (started, time.time())
            outcome = "withdrawn" if self._withdrawn is asyncio.current_task() else "done"
            self.pace.end(outcome)
            self.archive.event("scorer", "score", *self._span, step=step, outcome=outcome)
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
            await asyncio.to_thread(self.archive.write_scores, step, scores)
        except ArchiveError as error:
            log.error("the score matrices of step %d are not kept: %s", step, error)

    def probe_reader(self, step: int) -> Scorer | None:
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
        self.archive.event("scorer", "probe_failed", started, time.time(), step=step, cause=cause)

    async def _read_probe(self, scorer: Scorer, step: int, bundle: WeightBundle, groups: list[PlayedGroup]) -> None:
        started, bound = time.time(), 2 * self.timeout_s  # a scoring may be under way before it
        try:
            call = scorer.probe(step, bundle, [g.table for g in groups])
            figures, self.state = await bounded(call, bound)
            self._probes.append(figures)
            self.probing = None
        except (ActorError, TimeoutError) as error:
            self.probing = None
            self._unread(step, started, str(error) or f"no answer within {bound:g} s")
            if isinstance(error, Died):
                await self.succeed(scorer, str(error))
        else:
            self.archive.event("scorer", "probe", started, time.time(), step=step)

    async def succeed(self, dead: Scorer, cause: str) -> None:
        """Puts a successor in the place of a dead scorer, with the state of the last finished scoring. The first call
        for `dead` does so, later calls do nothing. A successor that does not take the state is replaced too, as long as
        restarts are left."""
        while self.fleet.scorer is dead:
            await self.fleet.replace_scorer(cause)
            successor = self.fleet.scorer
            if successor is None or self.state is None:
                return
            try:
                await bounded(successor.restore(self.state), self.start_s)
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
        self.archive.event("scorer", outcome, started, time.time(), step=step, cause=str(error))

    def take_figures(self, step: int, reward_mean: float) -> dict[str, float]:
        """Figures of the oldest finished scoring that was not taken yet, the outcomes counted since the last call, and
        the alarm's figures. `reward_mean`: mean reward of `step`, which records them; the alarm needs it."""
        news = self.untold()
        self._told = Counter(self.pace.outcomes)
        taken = self._figures.popleft() if self._figures else {}
        if self._probes:
            reading = self._probes.popleft()
            self._watch_probe(reading)
            taken |= reading
        self.alarm.reward(step, reward_mean)
        self._watch(taken)
        alarms = self.alarm.metrics() | self.probe_alarm.metrics()
        return taken | {f"scorer/{outcome}": float(n) for outcome, n in news.items()} | alarms

    def untold(self) -> dict[str, int]:
        """The outcomes that no step has counted yet."""
        return dict(self.pace.outcomes - self._told)

    def count(self, outcomes: Mapping[str, int]) -> None:
        """Takes the untold outcomes of an earlier process."""
        self._told.subtract(outcomes)

    def take_earlier(self) -> list[dict[str, float]]:
        """Figures of every finished scoring, and of every reading of the probe, that was not taken yet but the newest
        of each, oldest first. The run's last record takes the newest; no record comes after it."""
        scorings = [self._figures.popleft() for _ in range(len(self._figures) - 1)]
        for figures in scorings:
            self._watch(figures)
        readings = [self._probes.popleft() for _ in range(len(self._probes) - 1)]
        for reading in readings:
            self._watch_probe(reading)
        return scorings + readings

    def _watch(self, taken: dict[str, float]) -> None:
        """Passes new figures to the alarm, and reports once when it is raised, when reasoning falls silent, so that the
        alarm has no figures, or when reasoning becomes untrue, which the alarm does not see."""
        if "scorer/step" in taken:
            self._watch_soundness(int(taken["scorer/step"]), taken)
        seen = scoring_of(taken)
        if seen is None or not self.alarm.scoring(*seen):
            return
        facts = {"since": self.alarm.since, "reward_trend": self.alarm.reward_trend}
        self._tell_fall(seen[0], "input_dependence_falling", self.alarm.text(), **facts)

    def _watch_soundness(self, step: int, taken: dict[str, float]) -> None:
        began = self._soundness.scoring(step, taken)
        if MUTE in began:
            text = "reasoning has fallen silent: fewer than half of the first turns have any (regime mute)"
            self._tell_fall(step, "reasoning_mute", text)
        if UNTRUE in began:
            share = taken["judge/true_share"]
            text = f"reasoning has become untrue: of what states a fact the judge finds {share:.0%} entirely true, the "
            text += "mean of the last two scorings, which is below half of the run's first ones; MI does not show it"
            self._tell_fall(step, "reasoning_untrue", text, true_share=share)

    def _watch_probe(self, reading: dict[str, float]) -> None:
        """Passes a new reading of the fixed probe to its alarm, and reports each figure once when it falls, or when it
        becomes unknown, which leaves its alarm blind."""
        step = int(reading["probe/step"])
        for figure in self.probe_alarm.reading(step, reading):
            self._tell_fall(step, "probe_falling", self.probe_alarm.text(figure), figure=figure)
        before, self._blind = self._blind, self.probe_alarm.blind(reading)
        for figure in self._blind:
            if figure not in before:
                text = f"the fixed probe cannot tell whether {WORDS[figure]}: too little could be scored"
                self._tell(step, "probe_blind", text, figure=figure)

    def _tell_fall(self, step: int, event: str, text: str, **facts: Any) -> None:
        """As `_tell`, with the checkpoint from before the fall, or from before the bad state."""
        kept = newest_until(checkpoints(self.run_dir), self.sound_until)
        which = "no checkpoint is from before it"
        if kept is not None:
            which = f"checkpoints/step-{kept} is from before it, and stays"
        self._tell(step, event, f"{text}; {which}", checkpoint=kept, **facts)

    @property
    def sound_until(self) -> int | None:
        """The last step at which no alarm saw a fall and the reasoning was in no bad state; None before the first
        scoring."""
        watching = (self.alarm, *self.probe_alarm.figures.values())
        known = (*(alarm.since for alarm in watching), self._soundness.until)
        return min((step for step in known if step is not None), default=None)

    def _tell(self, step: int, event: str, text: str, **facts: Any) -> None:
        """Reports an alarm in the log, in the terminal and as an event."""
        now = time.time()
        log.warning("%s", text)
        self.say(f"step {step:4d}  ALARM: {text}")
        self.archive.event("scorer", event, now, now, step=step, **facts, text=text)

    def alarm_state(self) -> dict[str, Any]:
        """The state of both alarms and of what is kept beside them, for `restore`; plain JSON."""
        return {**self.alarm.state(), "probe": self.probe_alarm.state(), "soundness": self._soundness.state()}

    async def drain(self, stopped: bool) -> None:
        """Waits for the scoring and the reading of the probe under way, before the last record and at the end of a run:
        at most `scorer.timeout_s` for each, since the scorer does them one after the other, and at most
        `STOPPED_DRAIN_S` if the run was told to stop."""
        under_way = {task for task in (self._task, self._probe) if task is not None and not task.done()}
        if not under_way:
            return
        allowed = self.timeout_s * len(under_way)
        bound = min(allowed, STOPPED_DRAIN_S) if stopped else allowed
        _, late = await asyncio.wait(under_way, timeout=bound)
        for task in late:
            task.cancel()
            log.warning("the scorer did not finish its last step within %g s", bound)

    def pending(self) -> list[dict[str, float]]:
        """Figures of finished scorings and readings that no step has recorded yet, oldest first."""
        return [*self._figures, *self._probes]

    async def restore(
        self,
        state: dict[str, Any] | None,
        pending: Sequence[dict[str, float]] = (),
        alarm: dict[str, Any] | None = None,
    ) -> None:
        """Restores the scorer's state of an earlier process. `pending`: that process's figures that no step has
        recorded yet; `alarm`: what `alarm_state` gave, of older releases with less in it."""
        self.state = state
        self._probes.extend(figures for figures in pending if "probe/step" in figures)
        self._figures.extend(figures for figures in pending if "probe/step" not in figures)
        if alarm is not None:
            own = ("probe", "soundness")
            self.alarm.restore({name: value for name, value in alarm.items() if name not in own})
            self.probe_alarm.restore(alarm.get("probe", {}))
            self._soundness.restore(alarm.get("soundness", {}))
        scorer = self.fleet.scorer
        if state is None or scorer is None:
            return
        try:
            await bounded(scorer.restore(state), self.timeout_s)
        except Refused:
            raise
        except (ActorError, TimeoutError) as error:
            scorer.kill()
            await self.succeed(scorer, f"it did not take the state of the last scoring: {reason_of(error)}")
