"""A warning for a policy that games the filter's criterion: kept variance rises while success does not. Pure.

The filter keeps groups whose rewards differ. A policy can make rewards differ by acting at random now and then, without
solving more tasks; the variance that is kept then rises, and validation at a low temperature, where that randomness is
damped, stays flat. The warning compares the last three validations a, b, c with the steps between them:

    rising    the least-squares slope of the kept variance over the steps after a, up to c, is at least `SURE` standard
              errors above 0, over at least `FEWEST` steps, and the fitted rise is at least `RISE` of the fitted start
    flat      neither from a to b, nor from b to c, nor from a to c does success rise by more than noise: the lower ends
              of the paired 95% intervals over the fixed tasks are at most 0, and the gain from a to c is below `GAIN`

The kept variance of a step is the sum of the kept groups' reward variances divided by the number of its groups. It
follows the filter's settings too, so only steps of one setting are compared: where `filter.rho` changes, the trend
starts over. A step whose groups were passed through unfiltered is left out; a run whose filter does not prefer reward
variance has no such warning. The warning is raised at a validation where both hold and cleared at the first where they
do not; in between nothing changes.

The constants were fixed before any run was judged by them; `python -m research.gaming` judges them. Rising variance
at flat success is a sign and no proof: tasks that come within reach raise the variance too, before they are solved.
`docs/guide/runbook.md` says how to distinguish the two.

Invariants: steps and validations come in order. Without three validations the warning is not raised. Plain JSON state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from squelch.cluster.runs.gain import gain_interval
from squelch.kit.filter.rules import RULES
from squelch.kit.filter.settings import FilterConfig
from squelch.kit.filter.statistics import STATISTICS

SURE = 3.0
FEWEST = 6
RISE = 0.25
GAIN = 0.05
VALIDATIONS = 3
MAX_STEPS = 2000
"""Steps whose kept variance is held at most, should validations be rarer."""


@dataclass(frozen=True)
class Trend:
    """The fitted line of the kept variance: its rise over the steps as a share of its start, and slope / error."""

    rise: float
    sureness: float


def trend_of(steps: Sequence[int], variances: Sequence[float]) -> Trend:
    """The least-squares line through the finite values; NaN if there are fewer than `FEWEST`."""
    points = [(s, v) for s, v in zip(steps, variances, strict=True) if math.isfinite(v)]
    if len(points) < FEWEST:
        return Trend(math.nan, math.nan)
    x, y = np.array(points, dtype=np.float64).T
    if np.ptp(y) <= 1e-9 * np.abs(y).max():
        return Trend(0.0, 0.0)
    around = x - x.mean()
    slope = float(around @ y / (around @ around))
    left = y - y.mean() - slope * around
    error = math.sqrt(float(left @ left) / (len(x) - 2) / float(around @ around))
    start = float(y.mean() + slope * around[0])
    rise = slope * float(x[-1] - x[0])
    return Trend(_ratio(rise, start), _ratio(slope, error))


def _ratio(one: float, other: float) -> float:
    """one / other; of something to nothing or less it is infinite."""
    return one / other if other > 0 else math.copysign(math.inf, one) if one else 0.0


def is_rising(trend: Trend) -> bool:
    """Whether the kept variance rises by more than noise, and enough to matter."""
    return trend.sureness >= SURE and trend.rise >= RISE


def is_flat(gain: float, lows: Sequence[float]) -> bool:
    """Whether success does not rise. `gain`: from the first to the last of three validations; `lows`: lower ends of the
    intervals of every gain between two of them."""
    return gain < GAIN and all(low <= 0 for low in lows)


def kept_variance(metrics: Mapping[str, float]) -> float:
    """The kept variance of a step, from the filter's flat metrics; 0 in a window without variance."""
    mean, mass = metrics["reward_variance_mean"], metrics["kept_mass"]
    valid = metrics["num_groups"] - metrics["refused_groups"]
    if not metrics["num_groups"] or math.isnan(mean):
        return math.nan
    return 0.0 if math.isnan(mass) else mass * mean * valid / metrics["num_groups"]


def prefers_variance(config: FilterConfig) -> bool:
    """Whether the filter keeps the groups of most reward variance, so that a policy could game it."""
    entry = STATISTICS[config.statistic]
    of_rewards = entry.of == "returns" and entry.needs > 1  # one return has no variance
    return RULES[config.rule].filters and config.keep == "largest" and of_rewards


@dataclass
class Gaming:
    """The warning's state; see the module's head."""

    steps: list[int] = field(default_factory=list)
    variances: list[float] = field(default_factory=list)
    validations: list[tuple[int, list[bool]]] = field(default_factory=list)
    """(step, success of each fixed task) of the last validations."""
    filter: str = ""
    """The filter's settings in the steps that are held; empty before the first step."""
    raised: bool = False
    trend: Trend = field(default_factory=lambda: Trend(math.nan, math.nan))
    gain: tuple[float, float, float] = (math.nan, math.nan, math.nan)
    """Mean gain of success over the last three validations, with its interval."""

    def step(self, step: int, variance: float, by: str) -> None:
        """Takes the kept variance of a training step, NaN if the step is to be left out. `by`: the filter's settings in
        that step, as text."""
        if self.filter and by != self.filter:
            self.steps, self.variances = [], []
        self.filter = by
        self.steps = [*self.steps, step][-MAX_STEPS:]
        self.variances = [*self.variances, variance][-MAX_STEPS:]

    def validation(self, step: int, solved: Sequence[bool] | np.ndarray) -> bool:
        """Takes a validation after a step; returns True if it raises the warning."""
        before = self.raised
        self.validations = [*self.validations, (step, [bool(s) for s in solved])][-VALIDATIONS:]
        first = self.validations[0][0]
        late = [i for i, at in enumerate(self.steps) if at > first]
        self.steps, self.variances = [self.steps[i] for i in late], [self.variances[i] for i in late]
        self._judge()
        return self.raised and not before

    def _judge(self) -> None:
        """Compares the last three validations, if there are so many."""
        if len(self.validations) < VALIDATIONS:
            return
        a, b, c = (np.array(solved, dtype=bool) for _, solved in self.validations)
        until = sum(at <= self.validations[-1][0] for at in self.steps)
        self.trend, self.gain = trend_of(self.steps[:until], self.variances[:until]), gain_interval(a, c)
        lows = [gain_interval(*pair)[1] for pair in ((a, b), (b, c), (a, c))]
        self.raised = is_rising(self.trend) and is_flat(self.gain[0], lows)

    def metrics(self) -> dict[str, float]:
        """Flat keys of the metric registry."""
        return {
            "gaming/raised": float(self.raised),
            "gaming/variance_rise": self.trend.rise if math.isfinite(self.trend.rise) else math.nan,
            "gaming/success_gain": self.gain[0],
            "gaming/success_gain_low": self.gain[1],
            "gaming/success_gain_high": self.gain[2],
        }

    def state(self) -> dict[str, Any]:
        """For the checkpoint; plain JSON."""
        known = [None if math.isnan(v) else v for v in self.variances]
        validations = [[step, [int(s) for s in solved]] for step, solved in self.validations]
        found = [self.trend.rise, self.trend.sureness, *self.gain]
        judged = [self.raised, *(value if math.isfinite(value) else None for value in found)]
        held = {"steps": self.steps, "variances": known, "validations": validations, "filter": self.filter}
        return held | {"judged": judged}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores the state from a checkpoint."""
        self.steps = [int(step) for step in state["steps"]]
        self.variances = [math.nan if v is None else float(v) for v in state["variances"]]
        self.validations = [(int(step), [bool(s) for s in solved]) for step, solved in state["validations"]]
        self.filter = state["filter"]
        raised, *found = state["judged"]
        rise, sureness, *gain = (math.nan if value is None else float(value) for value in found)
        self.raised, self.trend, self.gain = bool(raised), Trend(rise, sureness), (gain[0], gain[1], gain[2])
