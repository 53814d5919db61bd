"""What recorded log-probabilities tell: which of two weights computed them, at which temperature, and how exactly.

Between two possibilities A and B, with their own log-probabilities a and b of the same tokens, recorded values r decide
by the slope of r - a on b - a: 0 is A, 1 is B. What the slope leaves of r - a is the recording's error, from the
engine's arithmetic and from how values are stored. Nothing is decided where it exceeds a third of b - a, because
rounded weights err in the direction of a training step.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from squelch.kit.checks.weights.likelihood import HIGHEST, LOWEST, at

LARGEST_ERROR = 1 / 3
"""Of the two possibilities' difference: a larger error of the recording decides nothing."""
SIGMAS = 4.0
"""Standard errors that lie between a slope and 1/2, before it decides."""
FEWEST_TOKENS = 50
MANTISSA = {"bfloat16": 8, "float16": 11}
"""Bits of a value's mantissa, the hidden one included."""


@dataclass(frozen=True)
class Slope:
    """How far recorded values lie from A towards B.

    Attributes:
        value: 0 for A, 1 for B.
        error: its standard error.
        difference: root mean square of b - a, nats a token.
        noise: root mean square of what the slope leaves, nats a token.
        num_tokens: it was computed from.
    """

    value: float
    error: float
    difference: float
    noise: float
    num_tokens: int

    @property
    def decides(self) -> bool:
        """Whether the recording is exact enough, and long enough, to tell A from B."""
        return self.num_tokens >= FEWEST_TOKENS and self.noise <= LARGEST_ERROR * self.difference

    @property
    def is_first(self) -> bool:
        """Whether the values are A's."""
        return self.decides and self.value + SIGMAS * self.error < 0.5

    @property
    def is_second(self) -> bool:
        """Whether the values are B's."""
        return self.decides and self.value - SIGMAS * self.error > 0.5


def slope(recorded: np.ndarray, first: np.ndarray, second: np.ndarray, clusters: Sequence[int] | np.ndarray) -> Slope:
    """The slope of (n,) recorded values from `first` (A) towards `second` (B), all in nats. `clusters`: a number of
    each token's, within which errors may depend on each other."""
    x, y = second - first, recorded - first
    finite = np.isfinite(x) & np.isfinite(y)
    x, y = x[finite], y[finite]
    power = float(x @ x)
    if not power:
        return Slope(0.0, np.inf, 0.0, float(np.sqrt(np.mean(y**2))) if len(y) else np.inf, len(y))
    value = float(x @ y) / power
    left = y - value * x
    _, owner = np.unique(np.asarray(clusters)[finite], return_inverse=True)
    by_cluster = np.bincount(owner, weights=x * left)
    num = len(by_cluster)
    correction = num / (num - 1) if num > 1 else np.inf
    error = float(np.sqrt(correction * float(by_cluster @ by_cluster))) / power if num > 1 else np.inf
    noise = float(np.sqrt(np.mean(left**2)))
    return Slope(value, error, float(np.sqrt(power / len(x))), max(noise, rounding(recorded[finite])), len(x))


def rounding(recorded: np.ndarray) -> float:
    """Root mean square error, in nats, of how values are stored, as their grid shows it: bfloat16, float16, or decimal
    places; 0 if it shows none."""
    values = recorded[recorded != 0]
    if len(values) < FEWEST_TOKENS:
        return 0.0
    for bits in MANTISSA.values():
        if np.array_equal(_rounded(values, bits), values):
            return float(np.sqrt(np.mean(_spacing(values, bits) ** 2 / 12)))
    for places in range(1, 6):
        if np.allclose(np.round(values, places), values, rtol=0, atol=10.0 ** -(places + 5)):
            return float(10.0**-places / np.sqrt(12))
    return 0.0


def temperature_of(recorded: np.ndarray, nodes: np.ndarray) -> tuple[float, np.ndarray]:
    """The temperature at which weights give values nearest to the recorded ones (n,), and their values (n,) there.
    `nodes`: (NODES, n), their values at the nodes."""

    def off(log_temperature: float) -> float:
        return float(np.mean((at(nodes.T, np.exp(log_temperature)) - recorded) ** 2))

    best = _lowest(off, np.log(LOWEST), np.log(HIGHEST))
    return float(np.exp(best)), at(nodes.T, float(np.exp(best)))


def _lowest(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function of one number is lowest: on a grid, then by golden section."""
    grid = np.linspace(low, high, 49)
    place = int(np.argmin([function(one) for one in grid]))
    a, b = float(grid[max(0, place - 1)]), float(grid[min(48, place + 1)])
    ratio = (np.sqrt(5) - 1) / 2
    for _ in range(40):
        left, right = b - ratio * (b - a), a + ratio * (b - a)
        a, b = (a, right) if function(left) < function(right) else (left, b)
    return (a + b) / 2


def _spacing(values: np.ndarray, bits: int) -> np.ndarray:
    return 2.0 ** (np.floor(np.log2(np.abs(values))) - bits + 1)


def _rounded(values: np.ndarray, bits: int) -> np.ndarray:
    spacing = _spacing(values, bits)
    return np.round(values / spacing) * spacing
