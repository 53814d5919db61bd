"""The likelihood of sampled tokens as a function of the sampling temperature, and evidence between weights.

Each token is scored at a few temperatures; between them its log-probability, which is smooth, is interpolated. Two
curves are known of every token: that of the whole distribution, and that of its head, given that a token of the head
was sampled. The second holds whether or not top_p, top_k or min_p cut the tail, and tells less.

The evidence against weights is a likelihood ratio whose mean is at most 1 if they sampled the tokens, so that it is
1/a or more in a share of at most a of such samples, however the tokens depend on each other (Ville's inequality). The
temperature is not known: the weights in question have their best one, and the others a mixture over all.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.polynomial import chebyshev

from squelch.kit.checks.weights.data import TokenScores

NODES = 13
HIGHEST = 4.0
LOWEST = 1 / HIGHEST
"""The temperatures between which the sampling temperature is sought."""


def _terms(place: float) -> np.ndarray:
    """(NODES,): the Chebyshev polynomials at a place between -1 and 1."""
    return np.cos(np.arange(NODES) * np.arccos(place))


def _derivative(order: int) -> np.ndarray:
    """(NODES, NODES): coefficients of a series to those of its derivative."""
    columns = [chebyshev.chebder(one, order) for one in np.eye(NODES)]
    return np.array([np.pad(one, (0, NODES - len(one))) for one in columns]).T


_HALF = float(np.log(HIGHEST))
_PLACES = np.cos(np.pi * (2 * np.arange(NODES) + 1) / (2 * NODES))
_PLACES[NODES // 2] = 0.0
_COEFFICIENTS = np.linalg.inv(chebyshev.chebvander(_PLACES, NODES - 1))
_GRID = np.linspace(-1, 1, 401)
_SPACING = float(_GRID[1] - _GRID[0])
_AT_GRID = chebyshev.chebvander(_GRID, NODES - 1)
NODE_TEMPERATURES = np.exp(_HALF * _PLACES)
"""(NODES,): Chebyshev nodes in the logarithm of the temperature; the middle one is 1."""
_SLOPES = np.stack([_derivative(1), _derivative(2)])
_ITERATIONS = 8


@dataclass(frozen=True)
class Peak:
    """The largest value of a curve. `information`: minus its second derivative by the logarithm of the temperature."""

    temperature: float
    value: float
    information: float


def at(nodes: np.ndarray, temperature: float) -> np.ndarray:
    """(..., NODES) values at the nodes -> (...) at a temperature between `LOWEST` and `HIGHEST`."""
    return nodes @ _weights(temperature)


def peak(nodes: np.ndarray) -> Peak:
    """The maximum of the curve with these values (NODES,)."""
    series = _COEFFICIENTS @ nodes
    place = float(_GRID[int(np.argmax(_AT_GRID @ series))])
    low, high = max(-1.0, place - _SPACING), min(1.0, place + _SPACING)
    slopes = _SLOPES @ series  # of the first and the second derivative
    for _ in range(_ITERATIONS):
        first, second = slopes @ _terms(place)
        if second >= 0:
            break
        place = float(np.clip(place - first / second, low, high))
    at_place = _terms(place)
    return Peak(float(np.exp(_HALF * place)), float(series @ at_place), -float(slopes[1] @ at_place) / _HALF**2)


def interval(nodes: np.ndarray, drop: float) -> tuple[float, float]:
    """The temperatures, around that of the maximum, at which the curve is `drop` below it; `LOWEST` and `HIGHEST` where
    it is not. A likelihood has one maximum, because it is concave in 1 / temperature."""
    top, series = peak(nodes), _COEFFICIENTS @ nodes
    ends = []
    for end in (-1.0, 1.0):
        inside, outside = float(np.log(top.temperature) / _HALF), end
        if series @ _terms(end) < top.value - drop:
            for _ in range(50):
                middle = (inside + outside) / 2
                within = series @ _terms(middle) >= top.value - drop
                inside, outside = (middle, outside) if within else (inside, middle)
        ends.append(float(np.exp(_HALF * outside)))
    return ends[0], ends[1]


def head_nodes(scores: TokenScores) -> np.ndarray:
    """(NODES, num_tokens): log p of each sampled token given that a token of the head was sampled; 0 for others."""
    inside = scores.place >= 0
    found = np.zeros((NODES, len(scores.place)))
    if inside.any():
        logits, place = scores.head[inside].astype(np.float64), scores.place[inside]
        own = logits[np.arange(len(place)), place]
        for row, temperature in enumerate(NODE_TEMPERATURES):
            found[row, inside] = own / temperature - np.log(np.exp(logits / temperature).sum(axis=1))
    return found


def log_evidence(null: np.ndarray, others: Sequence[np.ndarray], temperature: float | None) -> float:
    """Log of the evidence against the weights with the curve `null` (NODES,), from the curves of others. `temperature`:
    the claimed one, which has half of the mixture's weight."""
    if not others:
        return -np.inf
    mixed = np.array([log_mixture(other, temperature) for other in others])
    return float(np.logaddexp.reduce(mixed) - np.log(len(mixed)) - peak(null).value)


def log_mixture(nodes: np.ndarray, temperature: float | None) -> float:
    """Log of the likelihood's mean over temperatures: half of the weight on the claimed one, the rest spread evenly
    over the logarithm (Laplace's approximation)."""
    top = peak(nodes)
    width = np.sqrt(2 * np.pi / top.information) if top.information > 0 else np.inf
    spread = top.value + min(0.0, float(np.log(width / (2 * _HALF))))
    if temperature is None or not LOWEST <= temperature <= HIGHEST:
        return spread
    return float(np.logaddexp(at(nodes, temperature), spread) - np.log(2))


def divergence(own: np.ndarray, other: np.ndarray) -> float:
    """KL divergence of two weights in nats a token, the mean of both directions, from log p of tokens that either, or
    weights near them, sampled: the mean of d tanh(d / 2) is exact if half of the tokens are from each."""
    difference = other - own
    return float(np.mean(difference * np.tanh(difference / 2))) if len(difference) else 0.0


def _weights(temperature: float) -> np.ndarray:
    """(NODES,): what the values at the nodes count for the value at a temperature."""
    return _terms(float(np.clip(np.log(temperature) / _HALF, -1, 1))) @ _COEFFICIENTS
