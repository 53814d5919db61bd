"""The exact policy variance of tabular policies on a FrozenLake, by dynamic programming, and draws of their episodes.

A tabular policy gives a probability to each action at each time and cell. All of its randomness is drawn beforehand: an
*open-loop* policy draws one action for each time (a plan), a *reactive* one draws one action for each time and cell (a
deterministic policy that looks where it is). The policy variance is the variance, over these draws, of the expected
return given the draw. The expectation over noise is exact, so the truth has no sampling error.

With V_t(s) the probability to reach the goal from cell s at time t, given a draw, both recursions carry
M_t(s) = E V_t(s), (num_cells,), and C_t(s, s') = E V_t(s) V_t(s'), (num_cells, num_cells), since under noise one draw
meets several cells. P_a is the (num_cells, num_cells) transition matrix of action a, in which no episode leaves a hole
or the goal.

    open loop   C_t = sum_a pi_t(a) P_a C_{t+1} P_a^T
    reactive    C_t(s, s') = (P_pi C_{t+1} P_pi^T)(s, s') for s != s', since the actions are drawn apart,
                C_t(s, s) = sum_a pi_t(a | s) (P_a C_{t+1} P_a^T)(s, s)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from squelch.envs.grid_worlds.frozen_lake import FrozenLakeOptions, Lake, moves, outcomes

HORIZON = 10
"""Actions of an episode: five turns of two."""


@dataclass(frozen=True)
class Tabular:
    """A policy. `probabilities`: (HORIZON, num_cells, 4); those of an open-loop policy are the same in all cells."""

    probabilities: np.ndarray
    reacts: bool


def transitions(lake: Lake, options: FrozenLakeOptions) -> np.ndarray:
    """(4, num_cells, num_cells) probabilities of the next cell by action and cell."""
    table, size = moves(lake.size), lake.size**2
    found = np.zeros((4, size, size))
    for action in range(4):
        for cell in range(size):
            if cell == lake.goal or cell in lake.holes:
                found[action, cell, cell] = 1.0
                continue
            for probability, direction in outcomes(action, options):
                found[action, cell, table[cell][direction]] += probability
    return found


def exact(lake: Lake, options: FrozenLakeOptions, policy: Tabular) -> tuple[float, float]:
    """(expected return, policy variance) of a policy that starts at the lake's start."""
    step = transitions(lake, options)
    at_goal = np.zeros(lake.size**2)
    at_goal[lake.goal] = 1.0
    mean, cross = at_goal, np.outer(at_goal, at_goal)
    for chosen in policy.probabilities[::-1]:
        each = step @ cross @ step.transpose(0, 2, 1)
        mean_step = np.einsum("sa,asu->su", chosen, step)
        if policy.reacts:
            cross = mean_step @ cross @ mean_step.T
            np.fill_diagonal(cross, np.einsum("sa,ass->s", chosen, each))
        else:
            cross = np.einsum("a,asu->su", chosen[0], each)
        mean = mean_step @ mean
    return float(mean[lake.start]), max(0.0, float(cross[lake.start, lake.start] - mean[lake.start] ** 2))


def plan_returns(lake: Lake, options: FrozenLakeOptions, plans: np.ndarray) -> np.ndarray:
    """Expected return of each plan, (n,). `plans`: (n, HORIZON) actions, -1 after the plan's end."""
    step = transitions(lake, options)
    where = np.zeros((len(plans), lake.size**2))
    where[:, lake.start] = 1.0
    for actions in plans.T:
        moved = np.einsum("ns,nsu->nu", where, step[actions])
        where = np.where((actions >= 0)[:, None], moved, where)
    return where[:, lake.goal]


def draw_plans(lake: Lake, options: FrozenLakeOptions, policy: Tabular, count: int, rng: np.random.Generator) -> Drawn:
    """Plays `count` episodes. The plan of a policy that reacts ends with its episode; an open-loop plan is whole."""
    cells, ended = _start(lake, count)
    plans = np.full((count, HORIZON), -1)
    table = _cumulative(transitions(lake, options))
    for time, chosen in enumerate(policy.probabilities):
        actions = _draw(np.cumsum(chosen[cells], axis=1), rng)
        plays = np.ones(count, dtype=bool) if not policy.reacts else ~ended[cells]
        plans[plays, time] = actions[plays]
        cells = _draw(table[actions, cells], rng)
    return Drawn(plans, (cells == lake.goal).astype(np.float64))


@dataclass(frozen=True)
class Drawn:
    """Episodes. `plans`: (n, HORIZON) actions, -1 after the plan's end; `returns`: (n,)."""

    plans: np.ndarray
    returns: np.ndarray


def replays(expected: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Returns of replays of plans with these expected returns, (n, count): each is paid 1 or 0, by noise of its own."""
    return (rng.random((len(expected), count)) < expected[:, None]).astype(np.float64)


def _start(lake: Lake, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The cells of `count` episodes at their start, and a mask of the cells that end an episode."""
    ended = np.zeros(lake.size**2, dtype=bool)
    ended[[lake.goal, *lake.holes]] = True
    return np.full(count, lake.start), ended


def _cumulative(table: np.ndarray) -> np.ndarray:
    return np.cumsum(table, axis=-1)


def _draw(cumulative: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One index for each row of cumulative probabilities, (n,)."""
    return (rng.random(len(cumulative))[:, None] >= cumulative[:, :-1]).sum(axis=1)
