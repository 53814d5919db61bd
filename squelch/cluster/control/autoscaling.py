"""Autoscaling: how many rollout workers a run should have, from the times of its last steps (`rollout.count: auto`).
Pure.

Three times are measured of each step:

    waited_s   the learner waited for the step's groups
    queued_s   the step's groups, all of them, waited for the learner (the age of the queue)
    played_s   from the issue of the step's first ticket to its last group

A decision is made from `STEPS` steps with the same number n of workers; the step in which the number changed is left
out. Play is taken to need n * played_s worker seconds, so that m workers take n / m times as long.

    more    the learner waited for more than GROW_ABOVE of the time: n / 4 more, at least one
    fewer   with one less, it would wait for less than SHRINK_BELOW of the time: the queue's age is taken into account
    back    the last growth saved less than USEFUL of what it should have saved (as where turns, not workers, limit a
            step, or where workers share the same CPUs): the former number

It is slow (`STEPS` steps a decision) and does not oscillate: GROW_ABOVE is twice SHRINK_BELOW, and a number that was
too small, or turned out useless, is not chosen again for `PATIENCE` steps, each further time for twice as many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

STEPS = 5
GROW_ABOVE = 0.2
SHRINK_BELOW = 0.1
USEFUL = 0.25
PATIENCE = 40
LONGEST_PATIENCE = 640


@dataclass(frozen=True)
class StepLoad:
    """The times of one step in seconds, and the number of healthy workers that played it; see the module's head."""

    workers: int
    seconds: float
    waited_s: float
    queued_s: float
    played_s: float


@dataclass(frozen=True)
class Decision:
    """The number of rollout workers to have, and why."""

    count: int
    reason: str


@dataclass
class StepTimes:
    """The moments of one step, in seconds of one clock."""

    issued: float
    played: float | None = None
    """Its last group so far."""
    asked: float | None = None
    """The learner was free for it."""

    def load(self, workers: int, seconds: float) -> StepLoad | None:
        """The load of a step that took `seconds`; None unless it was played to its end."""
        if self.played is None or self.asked is None:
            return None
        asked, played = max(self.asked, self.issued), self.played
        return StepLoad(workers, seconds, max(0.0, played - asked), max(0.0, asked - played), played - self.issued)


@dataclass
class _Hold:
    """A number that is not chosen before step `until`."""

    until: int = 0
    patience: int = PATIENCE // 2


@dataclass
class Autoscaling:
    """Decides within [low, high]. `step` takes the load of each step in turn."""

    low: int
    high: int
    _clock: int = 0
    _loads: list[StepLoad] = field(default_factory=list)
    _holds: dict[int, _Hold] = field(default_factory=dict)
    _grown: StepLoad | None = None
    """Mean load before the last growth, until it has been judged."""

    def step(self, load: StepLoad) -> Decision | None:
        """The decision after a step; None to leave the number as it is."""
        self._clock += 1
        if self._loads and self._loads[-1].workers != load.workers:
            self._loads = []
        self._loads.append(load)
        if len(self._loads) <= STEPS:
            return None
        mean = _mean(self._loads[1:])
        decision = self._back(mean) or self._more(mean) or self._fewer(mean)
        self._loads = self._loads[-1:] if decision is None else []
        return decision

    def refused(self, count: int) -> None:
        """Notes that the run cannot have this number now."""
        self._grown = None
        self._hold(count)

    def _back(self, now: StepLoad) -> Decision | None:
        """The former number if the last growth was useless."""
        before, self._grown = self._grown, None
        if before is None or now.workers <= before.workers:
            return None
        ideal = min(before.waited_s, before.played_s * (1 - before.workers / now.workers))
        saved = before.waited_s - now.waited_s
        if saved >= USEFUL * ideal:
            return None
        self._hold(now.workers)
        return Decision(
            before.workers,
            f"{now.workers} instead of {before.workers} workers saved {max(0.0, saved):.2g} s of the "
            f"{before.waited_s:.2g} s a step that the learner waited; {ideal:.2g} s were expected",
        )

    def _more(self, now: StepLoad) -> Decision | None:
        share = now.waited_s / now.seconds if now.seconds > 0 else 0.0
        wanted = min(self.high, now.workers + max(1, now.workers // 4))
        count = next((n for n in range(wanted, now.workers, -1) if not self._held(n)), now.workers)
        if share <= GROW_ABOVE or count <= now.workers:
            return None
        self._grown = now
        self._hold(now.workers)
        return Decision(count, f"the learner waited for groups {share:.0%} of the last {STEPS} steps' time")

    def _fewer(self, now: StepLoad) -> Decision | None:
        count = now.workers - 1
        if count < self.low or self._held(count):
            return None
        longer = max(0.0, now.played_s / count - now.queued_s)
        share = (now.waited_s + longer) / (now.seconds + longer) if now.seconds > 0 else 0.0
        if share >= SHRINK_BELOW:
            return None
        return Decision(
            count,
            f"groups wait {now.queued_s:.2g} s for the learner; with {count} it would wait for groups {share:.0%} of "
            "the time",
        )

    def _held(self, count: int) -> bool:
        return count in self._holds and self._clock < self._holds[count].until

    def _hold(self, count: int) -> None:
        hold = self._holds.setdefault(count, _Hold())
        hold.patience = min(LONGEST_PATIENCE, 2 * hold.patience)
        hold.until = self._clock + hold.patience


def _mean(loads: Sequence[StepLoad]) -> StepLoad:
    return StepLoad(
        loads[-1].workers,
        fmean(load.seconds for load in loads),
        fmean(load.waited_s for load in loads),
        fmean(load.queued_s for load in loads),
        fmean(load.played_s for load in loads),
    )
