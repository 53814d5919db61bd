"""The coordinator's side of the scorer: offers it steps and collects figures; waits for it at the end alone.

`ScoringPace` says what is scored and what is said of a scorer that is behind or late. A dead scorer is an alarm and is
replaced, with the state of its last finished scoring. The early warning (`actors.diagnosis.alarm`) is here, beside the
rewards.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

from actors.diagnosis.alarm import DependenceAlarm, scoring_of
from actors.messages import WeightBundle
from actors.scorer.pace import ScoringPace
from cluster.config import RunConfig
from cluster.control.parties import Died, PartyError, Refused
from cluster.fleet.fleet import Fleet
from cluster.fleet.waiting import bounded
from cluster.loop.playing import PlayedGroup

log = logging.getLogger(__name__)
DRAIN_TIMEOUT_S = 60.0


class Scoring:
    """At most one scoring under way; its figures are taken by the next step's record that has none."""

    def __init__(
        self, config: RunConfig, fleet: Fleet, on_event: Callable[..., None], say: Callable[[str], None]
    ) -> None:
        self.say, self.alarm = say, DependenceAlarm()
        self.timeout_s, self.fleet, self.on_event = config.scorer.timeout_s, fleet, on_event
        self.pace = ScoringPace(config.scorer.every, config.scorer.timeout_s)
        self.state: dict[str, Any] | None = None
        """The scorer's state after its last finished scoring."""
        self._figures: deque[dict[str, float]] = deque()
        """Of scorings that no step has recorded yet, oldest first."""
        self._told: Counter[str] = Counter()
        self._task: asyncio.Task[None] | None = None
        self._started = 0.0
        self._span = (0.0, 0.0)

    def offer(self, step: int, bundle: WeightBundle, groups: list[PlayedGroup]) -> None:
        """Starts scoring a step that is due, unless the scorer is still busy with one."""
        if alarm := self.pace.check(time.time()):
            log.warning("%s", alarm)
        if self.fleet.scorer is not None and self.pace.begin(step, time.time()):
            self._task = asyncio.create_task(self._score(step, bundle, groups))

    async def _score(self, step: int, bundle: WeightBundle, groups: list[PlayedGroup]) -> None:
        self._started = started = time.time()
        scorer = self.fleet.scorer
        try:
            figures = await scorer.score(step, bundle, [g.table for g in groups])
            self.state = await scorer.state()
        except Died as error:
            self._failed(step, started, error)
            self.fleet.replace_scorer(str(error))
            await self.restore(self.state)
        except PartyError as error:
            self._failed(step, started, error)
        else:
            self.pace.end("done")
            self._figures.append(figures | {"scorer/step": float(step), "seconds/score": time.time() - started})
            self._span = (started, time.time())
            self.on_event("scorer", "score", *self._span, step=step)

    def spans(self, now: float) -> list[tuple[float, float]]:
        """When the scorer last worked, and works."""
        return [self._span, (self._started, now)] if self._busy() else [self._span]

    def _busy(self) -> bool:
        return self._task is not None and not self._task.done()

    def _failed(self, step: int, started: float, error: PartyError) -> None:
        outcome = "refused" if isinstance(error, Refused) else "failed"
        log.error("%s", self.pace.end(outcome, str(error)))
        self.on_event("scorer", outcome, started, time.time(), step=step, cause=str(error))

    def take_figures(self, step: int, reward_mean: float) -> dict[str, float]:
        """Figures of the oldest scoring that is finished and not yet taken, and outcomes counted since they were last
        taken; `reward_mean`: of the step that takes them, for the early warning."""
        news = self.pace.outcomes - self._told
        self._told = Counter(self.pace.outcomes)
        taken = self._figures.popleft() if self._figures else {}
        self.alarm.reward(step, reward_mean)
        self._watch(taken)
        return taken | {f"scorer/{outcome}": float(n) for outcome, n in news.items()} | self.alarm.figures()

    def _watch(self, taken: dict[str, float]) -> None:
        """Hands new figures to the early warning; says so once when it is raised."""
        seen = scoring_of(taken)
        if seen is None or not self.alarm.scoring(*seen):
            return
        now, text = time.time(), self.alarm.text()
        log.warning("%s", text)
        self.say(f"step {seen[0]:4d}  ALARM: {text}")
        facts = {"since": self.alarm.since, "reward_trend": self.alarm.reward_trend, "text": text}
        self.on_event("scorer", "input_dependence_falling", now, now, step=seen[0], **facts)

    async def drain(self) -> None:
        """Gives a scoring under way a bounded time to finish, before the last record and at the end of a run."""
        if self._task is None:
            return
        _, late = await asyncio.wait({self._task}, timeout=DRAIN_TIMEOUT_S)
        for task in late:
            task.cancel()
            log.warning("the scorer did not finish its last step within %g s", DRAIN_TIMEOUT_S)

    def pending(self) -> list[dict[str, float]]:
        """Figures of scorings finished that no step has recorded yet, oldest first."""
        return list(self._figures)

    async def restore(
        self,
        state: dict[str, Any] | None,
        pending: Sequence[dict[str, float]] = (),
        alarm: dict[str, Any] | None = None,
    ) -> None:
        """Hands the scorer its state of an earlier process; `pending`: that process's figures not recorded yet;
        `alarm`: its early warning."""
        self.state = state
        self._figures.extend(pending)
        if alarm is not None:
            self.alarm.restore(alarm)
        if state is not None and self.fleet.scorer is not None:
            await bounded(self.fleet.scorer.restore(state), self.timeout_s)
