"""The lakes and the tabular policies on which the policy variance is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from research.policy_variance.lake import HORIZON, Tabular
from squelch.envs.grid_worlds.frozen_lake import FrozenLakeOptions, Lake, generate, moves

NUM_LAKES = 8
Make = Callable[[Lake], Tabular]


def options_at(p: float) -> FrozenLakeOptions:
    """The paper's noise axis: the executed direction is uniform over the four with probability p."""
    return FrozenLakeOptions(slip_rate=0.75 * p)


def lakes(count: int = NUM_LAKES) -> list[Lake]:
    """The first lakes whose start lies beside a hole, so that an episode can be given up at once."""
    found: list[Lake] = []
    seed = 0
    while len(found) < count:
        lake = generate(seed, "train", FrozenLakeOptions())
        if any(cell in lake.holes for cell in moves(lake.size)[lake.start]):
            found.append(lake)
        seed += 1
    return found


def _greedy(lake: Lake) -> np.ndarray:
    """(num_cells,) first action of a shortest safe path; 0 where there is none."""
    best = np.zeros(lake.size**2, dtype=int)
    for cell, around in enumerate(moves(lake.size)):
        nearer = [a for a in range(4) if lake.distances[around[a]] == lake.distances[cell] - 1 >= 0]
        best[cell] = nearer[0] if nearer else 0
    return best


def _mixed(actions: np.ndarray, rate: float) -> np.ndarray:
    """(num_cells, 4): the given action, and with probability `rate` any of the four."""
    return (1 - rate) * np.eye(4)[actions] + rate / 4


def _open_loop(rate: float) -> Make:
    """Plans the shortest path without noise, and strays from it with probability `rate` at each action."""

    def make(lake: Lake) -> Tabular:
        best, cell, rows = _greedy(lake), lake.start, []
        for _ in range(HORIZON):
            rows.append(np.repeat(_mixed(best[[cell]], rate), lake.size**2, axis=0))
            cell = cell if cell == lake.goal else moves(lake.size)[cell][best[cell]]
        return Tabular(np.array(rows), reacts=False)

    return make


def _reactive(rate: float) -> Make:
    """Takes the shortest path from where it is, and strays with probability `rate` at each action."""

    def make(lake: Lake) -> Tabular:
        return Tabular(np.repeat(_mixed(_greedy(lake), rate)[None], HORIZON, axis=0), reacts=True)

    return make


def _gives_up(lake: Lake) -> Tabular:
    """Steps into the hole beside the start in half of all episodes; in the others it takes the shortest path from where
    it is."""
    chosen = np.repeat(np.eye(4)[_greedy(lake)][None], HORIZON, axis=0)
    into = next(a for a, cell in enumerate(moves(lake.size)[lake.start]) if cell in lake.holes)
    chosen[0, lake.start] = 0.5 * chosen[0, lake.start] + 0.5 * np.eye(4)[into]
    return Tabular(chosen, reacts=True)


POLICIES: Mapping[str, Make] = {
    "plan, strays 10%": _open_loop(0.1),
    "plan, strays 40%": _open_loop(0.4),
    "plan at random": _open_loop(1.0),
    "reacts, never strays": _reactive(0.0),
    "reacts, strays 40%": _reactive(0.4),
    "reacts or gives up": _gives_up,
}
"""The first three are open-loop plans; the others react to every cell they come to."""
