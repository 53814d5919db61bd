"""Alarm: detects that input dependence is falling, even while the reward still rises.

The alarm is a one-sided CUSUM (Page 1954) on MI-Seq-Est of the first turn, in units of its own standard error.
MI-Seq-Est is used because it is in nats per sequence: MI-Est, in nats per token, also falls when reasoning grows longer
at the same information. The first turn is used because its prompts are fresh tasks at every step; contexts of the
trajectory scope come from episodes whose lengths change with success, so its level changes without any collapse.

    reference    the highest mean of `BASELINE` consecutive significant scorer steps so far, taken while S is 0
    level_t      the smaller of the reference and the step's ceiling (log of its number of prompts, if equally likely)
    z_t          (level_t * (1 - DRIFT) - MI_t) / max(standard error, FLOOR * level_t), at most MOST
    S_t          S_(t-1) + z_t - ALLOWANCE, at least 0, at most THRESHOLD + MOST; the alarm is raised above THRESHOLD
                 and clears when S returns to 0

DRIFT allows for two effects: a healthy run may lose 10% of its best level as it specialises, and the best of several
means is biased upwards by selection. The ceiling matters if the number of prompts varies between steps, as with
`filter.refill`: MI cannot exceed the log of that number. One bad scorer step never raises the alarm (MOST < THRESHOLD);
two clearly low ones do. Because S is bounded, the alarm clears within a few scorer steps at the old level, however long
the fall lasted, and so can report the next fall. `since` is the last scored step at which S was 0: the last step before
the fall.

The parameters below were fixed before any run was judged by them. `python -m research.alarm` evaluates them; repeat
that evaluation after any change.

Invariants: scores must arrive in the order of their steps; a score of NaN changes nothing. Until a reference above 0 is
known the alarm is not armed and S is 0. Pure; plain JSON state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from squelch.kit.diagnosis.regime import RegimeInputs

BASELINE = 3
DRIFT = 0.15
FLOOR = 0.05
ALLOWANCE = 0.5
MOST = 3.0
THRESHOLD = 4.0
KEPT_REWARDS = 400
"""Number of steps whose reward is kept."""
TREND = 1.0
"""Number of standard errors by which the reward's slope must differ from 0 to count as rising or falling."""


Scored = tuple[int, float, float, bool, float]
"""The arguments of `DependenceAlarm.update`."""


@dataclass
class DependenceAlarm:
    """The alarm's state, updated with each scorer step and each reward; see the module's head."""

    baseline: int = BASELINE
    """Number of consecutive scorer steps whose mean MI is a level."""
    drift: float = DRIFT
    """Share of the best level that may be lost."""
    recent: list[float] = field(default_factory=list)
    """MI-Seq-Est of the latest consecutive scorer steps that were significant against the null, at most `baseline`."""
    reference: float | None = None
    cusum: float = 0.0
    raised: bool = False
    since: int | None = None
    """The last scored step at which S was 0."""
    latest: float | None = None
    rewards: list[list[float]] = field(default_factory=list)
    """[step, mean reward], oldest first."""

    def reward(self, step: int, mean: float) -> None:
        """Records the mean reward of a training step."""
        if math.isfinite(mean):
            self.rewards = [*self.rewards, [step, mean]][-KEPT_REWARDS:]

    def update(self, step: int, mi: float, standard_error: float, significant: bool, ceiling: float = math.inf) -> bool:
        """Records one scorer step; returns True if it raises the alarm.

        `mi`, `standard_error`: MI-Seq-Est and its standard error over prompts, nats per sequence; `significant`:
        whether MI is significant against the null (`RegimeInputs.significant`); `ceiling`: the largest possible MI of
        this step's prompts, nats.
        """
        if not (math.isfinite(mi) and math.isfinite(standard_error)):
            return False
        before, self.latest = self.raised, mi
        if self.reference is not None:
            level = min(self.reference, ceiling)
            z = min(MOST, (level * (1 - self.drift) - mi) / max(standard_error, FLOOR * level))
            self.cusum = min(THRESHOLD + MOST, max(0.0, self.cusum + z - ALLOWANCE))
        self.raised = self.cusum > THRESHOLD or (self.raised and self.cusum > 0)
        if self.cusum == 0.0:
            self.since = step
            self._learn(mi, significant)
        return self.raised and not before

    def _learn(self, mi: float, significant: bool) -> None:
        """Raises the reference to the mean of the last scorer steps, if each was significant against the null."""
        self.recent = [*self.recent, mi][-self.baseline :] if significant else []
        mean = sum(self.recent) / self.baseline
        if len(self.recent) == self.baseline and mean > (self.reference or 0.0):
            self.reference = mean

    @property
    def reward_trend(self) -> int:
        """Sign of the reward's slope since the fall began: 1 rising, 0 flat or unknown, -1 falling."""
        return trend([(s, value) for s, value in self.rewards if self.since is None or s > self.since])

    def text(self) -> str:
        """The alarm in words."""
        return (
            f"{alarm_text(self.since, self.reward_trend)} "
            f"(MI-Seq-Est {_text(self.reference)} -> {_text(self.latest)} nats per sequence)"
        )

    def metrics(self) -> dict[str, float]:
        """Flat keys of the metric registry."""
        return {
            "alarm/raised": float(self.raised),
            "alarm/armed": float(self.reference is not None),
            "alarm/cusum": self.cusum,
            "alarm/since": float(self.since) if self.raised and self.since is not None else math.nan,
            "alarm/reward_trend": float(self.reward_trend) if self.raised else math.nan,
        }

    def state(self) -> dict[str, Any]:
        """For the checkpoint; plain JSON."""
        return asdict(self)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores the state from a checkpoint."""
        for name, value in state.items():
            setattr(self, name, value)


def _text(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2f}"


def alarm_text(since: float | None, reward_trend: float) -> str:
    """Text of the form `input dependence falling since step 20, reward still rising`."""
    reward = {1: "still rising", 0: "flat", -1: "falling"}[int(reward_trend)]
    when = "the first scored step" if since is None else f"step {since:.0f}"
    return f"input dependence falling since {when}, reward {reward}"


def trend(points: Sequence[tuple[float, float]]) -> int:
    """Sign of the least-squares slope of (step, value) points, 0 within TREND standard errors or below 4 points."""
    if len(points) < 4:
        return 0
    steps, values = zip(*points, strict=True)
    step_mean, value_mean = sum(steps) / len(steps), sum(values) / len(values)
    spread = sum((s - step_mean) ** 2 for s in steps)
    slope = sum((s - step_mean) * (v - value_mean) for s, v in points) / spread
    left = sum((v - value_mean - slope * (s - step_mean)) ** 2 for s, v in points)
    error = math.sqrt(left / (len(points) - 2) / spread)
    return int(math.copysign(1, slope)) if slope and abs(slope) > TREND * error else 0


def score_of(line: Mapping[str, Any]) -> Scored | None:
    """The score in a line of `metrics.jsonl`, as arguments of `DependenceAlarm.update`; None without one.

    Raises ValueError if the line has an estimate without its standard error.
    """
    scope = {key.removeprefix("first_turn/"): value for key, value in line.items() if key.startswith("first_turn/")}
    if scope.get("mi_seq_est") is None:
        return None
    if "mi_seq_est_standard_error" not in scope:
        raise ValueError(f"step {line.get('step')}: first_turn/mi_seq_est has no first_turn/mi_seq_est_standard_error")
    values = {key: math.nan if value is None else value for key, value in scope.items()}
    significant, ceiling = RegimeInputs.of(values).significant, values.get("upper_bound", math.nan)
    return (
        int(line["scorer/step"] if line.get("scorer/step") is not None else line["step"]),
        values["mi_seq_est"],
        values["mi_seq_est_standard_error"],
        significant,
        math.inf if math.isnan(ceiling) else ceiling,
    )
