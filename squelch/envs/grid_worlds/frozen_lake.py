"""FrozenLake with Gymnasium's dynamics on lakes whose start, goal and holes vary with the seed.

Invariants: the goal can be reached without slipping, in at least `min_distance` moves. A hole or the goal ends the
episode. Each action takes the same number of noise draws, so that under one noise seed the k-th action of every
trajectory has the same noise.

Symbols: `P` player, `_` ice, `O` hole, `G` goal. After the end only, and so never in the policy's input: `X` player in
a hole, `*` player on the goal.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from pydantic import Field

from squelch.envs.grid_worlds.base import GridEnv, GridOptions
from squelch.envs.grid_worlds.symbols import FROZEN_LAKE, FROZEN_LAKE_NOUNS
from squelch.envs.wording import Cell, Rng, choose, draw_distinct, shuffled, wordings_beside
from squelch.kit.records.splits import MAX_DRAWS, Split, no_task, split_of, task_key_of

LEFT, DOWN, RIGHT, UP = range(4)  # Gymnasium's order: perpendicular to a are (a - 1) % 4 and (a + 1) % 4
ACTION_PAYS = 0.02  # two of them are below 0.05: the message of a turn of two actions shows 0.0, as without them
HOLE_FACT_RATE = 0.3  # probability that a grounded reasoning names a hole next to the player, if there is one


class FrozenLakeOptions(GridOptions):
    """Layout of a lake and its slipperiness."""

    size: int = Field(4, ge=3, le=10)
    """Rows, and columns."""
    slip: Literal["perpendicular", "uniform"] = "uniform"
    """Direction of a slip: one of the two perpendicular directions (Gymnasium's), or one of the three others."""
    slip_rate: float = Field(0.02, ge=0, le=1)
    """Probability that an action slips. The paper's "2% random rate" is 0.02 uniform; Gymnasium's `is_slippery` is 2/3
    perpendicular. A direction that is uniform over all four with probability p is a uniform slip at rate 0.75 p."""
    shared_slip: bool = False
    """Whether the trajectories of one group have the same slips, so that their variance has no environment noise."""
    pays: Literal["goal", "left", "format", "mixed"] = "goal"
    """What earns the reward. Three are for studies of collapse, in which success is still reaching the goal. `left`
    ignores the task: every action `Left` pays 0.02, wherever the player and the goal are, and the goal nothing.
    `format` is a reward for well-formed answers that outweighs the task: every action pays 0.02, so the longest episode
    pays most, and the goal nothing. `mixed` is `left` where the goal lies in an odd column, counted from 0, and `goal`
    elsewhere."""
    min_holes: int = Field(2, ge=0)
    """Fewest holes."""
    max_holes: int = Field(4, ge=0)
    """Most holes; their number is uniform between the two."""
    min_distance: int = Field(2, ge=1)
    """Fewest moves of the shortest safe path from start to goal."""
    max_distance: int = Field(4, ge=1)
    """Most moves of that path."""

    def _faults(self) -> Iterator[str]:
        if self.min_holes > self.max_holes or self.max_holes > self.size**2 - 2:
            yield (
                f"min_holes={self.min_holes}, max_holes={self.max_holes}: need min_holes <= max_holes <= "
                f"{self.size**2 - 2} on a lake of size {self.size}"
            )
        if self.min_distance > self.max_distance:
            yield f"min_distance={self.min_distance} is above max_distance={self.max_distance}"


@dataclass(frozen=True)
class Lake:
    """One task. Cells are numbered row by row; `distances[cell]` is the safe distance to the goal, -1 without a
    path."""

    size: int
    start: int
    goal: int
    holes: frozenset[int]
    distances: tuple[int, ...]
    key: str


@lru_cache(maxsize=16)
def moves(size: int) -> tuple[tuple[int, int, int, int], ...]:
    """The cell to which each action leads, per cell; at the edge the player stays. Shape (size * size, 4)."""
    cells = [(row, column) for row in range(size) for column in range(size)]
    return tuple(
        (
            row * size + max(column - 1, 0),
            min(row + 1, size - 1) * size + column,
            row * size + min(column + 1, size - 1),
            max(row - 1, 0) * size + column,
        )
        for row, column in cells
    )


def safe_distances(size: int, goal: int, holes: frozenset[int]) -> tuple[int, ...]:
    """Moves from each cell to the goal without entering a hole, by breadth-first search; -1 without a path."""
    table = moves(size)
    distances = [-1] * size**2
    distances[goal] = 0
    queue = [goal]
    for cell in queue:
        for neighbour in table[cell]:  # moves between ice cells are reversible, so the search may start at the goal
            if distances[neighbour] < 0 and neighbour not in holes:
                distances[neighbour] = distances[cell] + 1
                queue.append(neighbour)
    return tuple(distances)


def grid(size: int, player: int, goal: int, holes: frozenset[int]) -> str:
    """The lake as text: one symbol per cell, cells separated by spaces, rows by newlines."""
    cells = ["_"] * size**2
    for hole in holes:
        cells[hole] = "O"
    cells[goal] = "G"
    cells[player] = "*" if player == goal else "X" if player in holes else "P"
    return "\n".join(" ".join(cells[i : i + size]) for i in range(0, size**2, size))


@lru_cache(maxsize=4096)
def generate(seed: int, split: Split, options: FrozenLakeOptions) -> Lake:
    """The lake of `seed`: lakes are drawn until one belongs to `split` and its distance is within the bounds."""
    rng = random.Random(f"FrozenLake {seed}")
    for _ in range(MAX_DRAWS):
        count = options.min_holes + int(rng.random() * (options.max_holes - options.min_holes + 1))
        start, goal, *rest = draw_distinct(rng, count + 2, options.size**2)
        holes = frozenset(rest)
        key = task_key_of("FrozenLake", grid(options.size, start, goal, holes))
        lake = lake_of(start, goal, holes, options) if split_of(key) == split else None
        if lake is not None:
            return lake
    raise no_task("FrozenLake", options)


def lake_of(start: int, goal: int, holes: frozenset[int], options: FrozenLakeOptions) -> Lake | None:
    """The lake with these cells; None if its distance is not within the bounds."""
    distances = safe_distances(options.size, goal, holes)
    if not options.min_distance <= distances[start] <= options.max_distance:
        return None
    key = task_key_of("FrozenLake", grid(options.size, start, goal, holes))
    return Lake(options.size, start, goal, holes, distances, key)


def outcomes(action: int, options: FrozenLakeOptions) -> list[tuple[float, int]]:
    """(probability, direction) of each outcome of an action; the intended direction comes first."""
    others = [(action - 1) % 4, (action + 1) % 4]
    if options.slip == "uniform":
        others.append((action + 2) % 4)
    return [(1 - options.slip_rate, action), *((options.slip_rate / len(others), other) for other in others)]


class FrozenLake(GridEnv):
    """Walk to the goal over slippery ice: +1 at the goal, else 0; a hole ends the episode."""

    name = "FrozenLake"
    Options = FrozenLakeOptions
    actions = ("Left", "Down", "Right", "Up")
    legend = FROZEN_LAKE
    nouns = FROZEN_LAKE_NOUNS
    wordings = wordings_beside(__file__, "frozen_lake")
    options: FrozenLakeOptions

    @property
    def side(self) -> int:
        """Rows, and columns, of the lake."""
        return self.options.size

    @property
    def stochastic(self) -> bool:
        """Whether the ice is slippery."""
        return self.options.slip_rate > 0

    @property
    def shared_noise(self) -> bool:
        """Whether the trajectories of a group have the same slips (`shared_slip`)."""
        return self.options.shared_slip

    def terms(self) -> dict[str, str]:
        """As `GridEnv.terms`, and whether the ice is slippery."""
        return {**super().terms(), "slip": self.wording.shown["slip"] if self.options.slip_rate > 0 else ""}

    def step_rewards(self) -> tuple[float, ...]:
        """As `ClosedVocabulary.step_rewards`."""
        return (0.0, ACTION_PAYS)

    def board(self) -> str:
        """The current board as plain text."""
        return grid(self._lake.size, self._cell, self._lake.goal, self._lake.holes)

    def task_key(self) -> str:
        """Digest of the task's content."""
        return self._lake.key

    def task_kind(self) -> str:
        """The shortest safe path from the start, in moves."""
        return f"distance {self._lake.distances[self._lake.start]}"

    def solution(self) -> list[str] | None:
        """Actions to success from the current state; None if none is known."""
        return self._shortest(self._lake.distances[self._cell], None)

    def _shortest(self, count: int, rng: Rng | None) -> list[str] | None:
        """The first `count` moves of a shortest safe path; `rng` chooses among equally good moves, else the first is
        taken."""
        distances, table = self._lake.distances, moves(self._lake.size)
        if self._terminated() or distances[self._cell] < 0:
            return None
        path, cell = [], self._cell
        for _ in range(min(count, distances[cell])):
            best = [a for a in range(4) if distances[table[cell][a]] == distances[cell] - 1]
            action = best[0] if rng is None else choose(rng, best)
            path.append(self.actions[action])
            cell = table[cell][action]
        return path

    def _plan(self, rng: Rng, count: int) -> list[str] | None:
        return self._shortest(count, rng)

    def _load(self, seed: int) -> dict[str, Any]:
        return self._entered(generate(seed, self.split, self.options))

    def _entered(self, lake: Lake) -> dict[str, Any]:
        self._lake, self._cell = lake, lake.start
        return {"distance": lake.distances[lake.start]}

    def content(self) -> str:
        """The lake at its start."""
        return grid(self._lake.size, self._lake.start, self._lake.goal, self._lake.holes)

    def family(self, rng: Rng) -> Iterator[str]:
        """As `TwinnedEnv.family`: the player, the goal or one hole is elsewhere. All lakes of a family are equally
        likely as tasks."""
        lake = self._lake
        part = choose(rng, ("player", "goal", "hole") if lake.holes else ("player", "goal"))
        hole = choose(rng, sorted(lake.holes)) if part == "hole" else None
        free = set(range(lake.size**2)) - lake.holes - {lake.start, lake.goal}
        for cell in shuffled(rng, sorted(free)):
            start, goal = cell if part == "player" else lake.start, cell if part == "goal" else lake.goal
            holes = lake.holes if hole is None else lake.holes - {hole} | {cell}
            if lake_of(start, goal, holes, self.options) is not None:
                yield grid(lake.size, start, goal, holes)

    def _load_content(self, content: str) -> dict[str, Any]:
        cells = content.split()
        player, goal, holes = ([at for at, cell in enumerate(cells) if cell == glyph] for glyph in "PGO")
        if len(cells) == self.options.size**2 and len(player) == len(goal) == 1:
            lake = lake_of(player[0], goal[0], frozenset(holes), self.options)
            if lake is not None and grid(lake.size, lake.start, lake.goal, lake.holes) == content:
                return self._entered(lake)
        raise ValueError(f"{content!r} is no lake within the limits of {self.options}")

    def _move(self, action: str) -> float:
        self._cell = moves(self._lake.size)[self._cell][self._executed(self.actions.index(action))]
        pays = self.options.pays
        if pays == "mixed":
            pays = "left" if self._lake.goal % self.options.size % 2 else "goal"
        if pays != "goal":
            return ACTION_PAYS if pays == "format" or action == "Left" else 0.0
        return 1.0 if self._succeeded() else 0.0

    def _executed(self, action: int) -> int:
        """The direction of the move after noise, always from two draws."""
        slips, where = self._noise.random() < self.options.slip_rate, self._noise.random()
        if not slips:
            return action
        return outcomes(action, self.options)[1 + int(where * (2 if self.options.slip == "perpendicular" else 3))][1]

    def _terminated(self) -> bool:
        return self._cell == self._lake.goal or self._cell in self._lake.holes

    def _succeeded(self) -> bool:
        return self._cell == self._lake.goal

    def _facts(self, rng: Rng) -> dict[str, Cell]:
        size = self._lake.size
        facts = {"player": divmod(self._cell, size), "goal": divmod(self._lake.goal, size)}
        near = [cell for cell in moves(size)[self._cell] if cell in self._lake.holes]
        if near and rng.random() < HOLE_FACT_RATE:
            facts["hole"] = divmod(choose(rng, near), size)
        return facts
