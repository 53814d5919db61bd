"""The kept share that sets itself: when rho moves to a neighbour on its grid, and why. Pure.

Every measurement gives q for each rho of the grid (`learner.decomposition.alignment`), all from the same groups, so the
differences d = q(neighbour) - q(rho in use) are paired. The controller keeps one running sum for each neighbour and
moves when the confidence sequence of the mean of d lies above 0.

The confidence sequence
-----------------------

For n differences with mean m and sample standard deviation s, and a normal prior of variance 1 on the mean in units of
the standard deviation, the Bayes factor against a mean of mu depends on t = (m - mu) sqrt(n) / s alone:

    E_n = k^(-1/2) ((1 + t^2 / v) / (1 + t^2 / (v k)))^((v + 1) / 2),    v = n - 1,  k = n + 1

Under mu, E_n is a martingale that starts at 1 (Lai 1976; Gönen et al. 2005 for this form; Wang and Ramdas 2023), so it
ever exceeds 1 / level with a probability of at most `level` (Ville). The mu that it does not exceed form an interval
that holds at all n together. The controller may therefore look after each measurement, and stop whenever it likes.
Exact for normal differences; heavy tails are tested (tests/cluster/control/test_kept_share.py). Of differences that are
far below their mean more often than far above it, the few first say too much: there `error` does not hold.

Invariants:

- rho is always on the grid, within [low, high], and moves by one place at a time.
- Under symmetric noise without any difference rho ever leaves its start with a probability of at most `error`: the two
  neighbours share a sequence's level, a sequence of `LENGTH` measurements without a move is followed by a new one,
  because the policy changes meanwhile, and the j-th sequence at one rho has the level error / (j (j + 1)), which sum to
  `error`.
- No move before `FEWEST` measurements.
- The state is plain JSON; a restored controller moves as the uninterrupted one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

FEWEST = 8
LENGTH = 64


@dataclass(frozen=True)
class Interval:
    """The mean of paired differences of q, and its confidence sequence; infinite as long as nothing is known."""

    count: int
    mean: float
    low: float
    high: float


@dataclass
class Sums:
    """Running sums of n values."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        """Adds a value."""
        self.count += 1
        self.total += value
        self.squares += value * value

    def interval(self, level: float) -> Interval:
        """The confidence sequence of the mean at this number of values, with error `level`."""
        if not self.count:
            return Interval(0, math.nan, -math.inf, math.inf)
        mean = self.total / self.count
        half = half_width(self.count, math.sqrt(self._variance()), level)
        return Interval(self.count, mean, mean - half, mean + half)

    def _variance(self) -> float:
        if self.count < 2:
            return 0.0
        around = self.squares - self.total**2 / self.count
        return 0.0 if around <= 1e-12 * self.squares else around / (self.count - 1)


def half_width(count: int, deviation: float, level: float) -> float:
    """Half of the confidence sequence's width at `count` values with this sample standard deviation.

    Infinite if so few values cannot exclude any mean, and if the values do not vary: equal values say nothing of their
    noise.
    """
    if count < 2 or deviation <= 0:
        return math.inf
    v, k = count - 1, count + 1
    bound = (math.sqrt(k) / level) ** (2 / (v + 1))
    if bound >= k:
        return math.inf
    return deviation / math.sqrt(count) * math.sqrt(v * (bound - 1) / (1 - bound / k))


@dataclass(frozen=True)
class Move:
    """A change of rho, with its reason in words."""

    before: float
    after: float
    reason: str


@dataclass
class _State:
    """The controller's state; see the module's head."""

    rho: float
    sequence: int = 1
    lower: Sums = field(default_factory=Sums)
    higher: Sums = field(default_factory=Sums)


class KeptShare:
    """Decides on rho from measurements of q. `grid`: the rhos that may be used, `start` among them; `moves`: whether
    rho may move. Without it the differences are kept as they would be, and rho stays."""

    def __init__(self, start: float, grid: Sequence[float], error: float, moves: bool = True) -> None:
        self.grid, self.error, self.moves = tuple(sorted(grid)), error, moves
        if start not in self.grid:
            raise ValueError(f"rho={start:g} is not on the grid {', '.join(f'{rho:g}' for rho in self.grid)}")
        self._state = _State(start)
        self.seen = self.differences()
        """The differences with the last measurement of this process, also where it ended a sequence."""

    @property
    def rho(self) -> float:
        """The rho in use."""
        return self._state.rho

    @property
    def level(self) -> float:
        """The error of each neighbour's confidence sequence at present."""
        return self.error / (self._state.sequence * (self._state.sequence + 1)) / 2

    @property
    def neighbours(self) -> tuple[float | None, float | None]:
        """The next lower and the next higher rho of the grid, None at its ends."""
        at = self.grid.index(self.rho)
        return self.grid[at - 1] if at else None, self.grid[at + 1] if at + 1 < len(self.grid) else None

    def differences(self) -> dict[str, Interval]:
        """q of the lower and of the higher neighbour minus q of the rho in use, of this sequence's measurements."""
        state = self._state
        return {"lower": state.lower.interval(self.level), "higher": state.higher.interval(self.level)}

    def observe(self, q: Mapping[float, float]) -> Move | None:
        """Takes a measurement, q for each rho of the grid; returns the move that it causes, if any. `seen` then has the
        differences on which that was decided.

        A measurement with a value that is not finite is left out.
        """
        if not all(math.isfinite(value) for value in q.values()):
            return None
        state, used = self._state, q[self.rho]
        for sums, rho in zip((state.lower, state.higher), self.neighbours, strict=True):
            if rho is not None:
                sums.add(q[rho] - used)
        self.seen = self.differences()
        move = self._move() if self.moves else None
        if move is not None:
            self._state = _State(move.after)
        elif max(state.lower.count, state.higher.count) >= LENGTH:
            self._state = _State(state.rho, state.sequence + 1)
        return move

    def _move(self) -> Move | None:
        """The move to the better of the neighbours that the measurements tell from the rho in use."""
        found = zip(self.neighbours, self.differences().values(), strict=True)
        told = [(interval, rho) for rho, interval in found if rho is not None and _told(interval)]
        if not told:
            return None
        interval, rho = max(told, key=lambda pair: pair[0].mean)
        words = (
            f"q({rho:g}) - q({self.rho:g}) = {interval.mean:.3g} [{interval.low:.3g}, {interval.high:.3g}] over "
            f"{interval.count} measurements, at all times together with error {self.level:.3g}"
        )
        return Move(self.rho, rho, words)

    def state(self) -> dict[str, Any]:
        """For the checkpoint; plain JSON."""
        return asdict(self._state)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state`. Raises ValueError if its rho is not on the grid."""
        rho = float(state["rho"])
        if rho not in self.grid:
            grid = ", ".join(f"{value:g}" for value in self.grid)
            raise ValueError(f"the checkpoint's controller used rho={rho:g}, which is not on this run's grid {grid}")
        sums = {name: Sums(**state[name]) for name in ("lower", "higher")}
        self._state = _State(rho, int(state["sequence"]), **sums)


def _told(interval: Interval) -> bool:
    return interval.count >= FEWEST and interval.low > 0


def grid_of(start: float, low: float, high: float, places: Sequence[float]) -> tuple[float, ...]:
    """The places within [low, high], with the bounds and the start, ascending."""
    inside = {place for place in places if low <= place <= high}
    return tuple(sorted(inside | {start, low, high}))
