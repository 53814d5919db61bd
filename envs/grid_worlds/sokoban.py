"""Sokoban with the rewards of the paper's appendix B.1, on rooms made by playing backwards.

Invariants: every task can be solved, in exactly `info["solution_length"]` moves and no fewer; pushes cannot be undone;
an episode ends only when every box is on a target. A dead-lock does not end it: `info["deadlock"]` tells of one that
the dead squares prove.

The outer wall is not shown: a room of `size` 6 is a board of 4 x 4 cells, and its edges are walls. Symbols: `P` player,
`X` box, `O` target, `#` wall, `_` floor, `*` box on a target, `S` player on a target.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import Field, model_validator

from envs.grid_worlds.base import GridEnv
from envs.settings import Settings
from envs.splits import MAX_DRAWS, Split, no_task, split_of, task_key_of
from envs.wording import Cell, Rng, Wording, choose, draw_distinct

ACTION_REWARD, BOX_REWARD, DONE_REWARD = -0.1, 1.0, 10.0  # appendix B.1
MAX_STATES = 200_000  # states that one search may visit
STARTS_PER_ROOM = 16  # starts tried before the next room is drawn

Moves = tuple[tuple[int, int, int, int], ...]
"""Per cell, the cell that Left, Down, Right, Up lead to; -1 where a wall is, hence four times in a wall."""


class SokobanOptions(Settings):
    """What a room looks like and how hard it is."""

    size: int = Field(6, ge=5, le=12)
    """Rows, and columns, outer wall included."""
    boxes: int = Field(1, ge=1, le=4)
    """Boxes, and targets."""
    min_solution: int = Field(2, ge=1)
    max_solution: int = Field(8, ge=1)
    """Bounds of the shortest solution, in moves; its length is uniform over what the room admits."""
    min_walls: int = Field(2, ge=0)
    max_walls: int = Field(5, ge=0)
    """The number of inner walls is uniform between the two; floor cut off by them becomes wall as well, up to half of
    the cells."""

    @model_validator(mode="after")
    def _room_has_space(self) -> SokobanOptions:
        cells = (self.size - 2) ** 2
        if self.max_walls > cells // 2 or 2 * self.boxes + 1 > cells // 2:
            raise ValueError(
                f"max_walls={self.max_walls} and boxes={self.boxes} do not fit the {cells} inner cells of "
                f"size={self.size}; half of them stay floor, so max_walls and 2 boxes + 1 are at most {cells // 2}"
            )
        if self.min_walls > self.max_walls:
            raise ValueError(f"min_walls={self.min_walls} is above max_walls={self.max_walls}")
        if self.min_solution > self.max_solution:
            raise ValueError(f"min_solution={self.min_solution} is above max_solution={self.max_solution}")
        return self


@dataclass(frozen=True)
class Room:
    """What never moves. Sets of cells are bit masks: bit `cell` is 1 for a member."""

    side: int
    moves: Moves
    targets: int
    dead: int
    """Cells from which no box can be pushed to any target."""


@dataclass(frozen=True)
class Level:
    """One task."""

    room: Room
    player: int
    boxes: int
    solution_length: int
    key: str


def members(mask: int) -> list[int]:
    """The cells of a bit mask, ascending."""
    return [cell for cell in range(mask.bit_length()) if mask >> cell & 1]


def make_moves(side: int, walls: int) -> Moves:
    """The move table of a board of `side` x `side` with the given walls and closed edges."""

    def cell(row: int, column: int) -> int:
        inside = 0 <= row < side and 0 <= column < side
        number = row * side + column
        return number if inside and not walls >> number & 1 else -1

    return tuple(
        (cell(r, c - 1), cell(r + 1, c), cell(r, c + 1), cell(r - 1, c)) if cell(r, c) >= 0 else (-1, -1, -1, -1)
        for r in range(side)
        for c in range(side)
    )


def advance(moves: Moves, player: int, boxes: int, action: int) -> tuple[int, int] | None:
    """(player, boxes) after an action; None when a wall or a blocked box holds the player back."""
    ahead = moves[player][action]
    if ahead < 0:
        return None
    if not boxes >> ahead & 1:
        return ahead, boxes
    beyond = moves[ahead][action]
    if beyond < 0 or boxes >> beyond & 1:
        return None
    return ahead, boxes ^ 1 << ahead ^ 1 << beyond


def retreat(moves: Moves, player: int, boxes: int) -> list[tuple[int, int]]:
    """Every state from which one action leads to (player, boxes): a step back, alone or pulling a box."""
    states = []
    for action in range(4):
        back, ahead = moves[player][(action + 2) % 4], moves[player][action]
        if back < 0 or boxes >> back & 1:
            continue
        states.append((back, boxes))
        if ahead >= 0 and boxes >> ahead & 1:
            states.append((back, boxes ^ 1 << ahead ^ 1 << player))
    return states


def dead_cells(moves: Moves, targets: int) -> int:
    """Cells from which a box, alone in the room, can be pushed to no target: corners and more."""
    alive = members(targets)
    for cell in alive:
        for action in range(4):
            before = moves[cell][(action + 2) % 4]  # a box there is pushed here by a player behind it
            if before >= 0 and moves[before][(action + 2) % 4] >= 0 and before not in alive:
                alive.append(before)
    return ((1 << len(moves)) - 1) & ~sum(1 << cell for cell in alive)


def solvable_states(room: Room, max_moves: int) -> list[list[tuple[int, int]]]:
    """Reverse play: entry d holds the states whose shortest solution has exactly d moves, d = 0..max_moves."""
    floor = [cell for cell in range(room.side**2) if max(room.moves[cell]) >= 0]
    layer = [(cell, room.targets) for cell in floor if not room.targets >> cell & 1]
    seen, layers = set(layer), [layer]
    while layer and len(layers) <= max_moves and len(seen) < MAX_STATES:
        layer = []
        for player, boxes in layers[-1]:
            fresh = [state for state in retreat(room.moves, player, boxes) if state not in seen]
            seen.update(fresh)
            layer.extend(fresh)
        layers.append(layer)
    return layers


@lru_cache(maxsize=65536)
def solve(room: Room, player: int, boxes: int) -> tuple[int, ...] | None:
    """A shortest solution by breadth-first search that prunes dead squares; None if there is none.

    Raises RuntimeError after `MAX_STATES` states: unlike the rooms here, such a one is beyond plain search.
    """
    came: dict[tuple[int, int], tuple[tuple[int, int], int] | None] = {(player, boxes): None}
    queue = [(player, boxes)]
    for state in queue:
        if state[1] == room.targets:
            return _path(came, state)
        for action in range(4):
            after = advance(room.moves, *state, action)
            if after is not None and after not in came and not after[1] & room.dead:
                came[after] = (state, action)
                queue.append(after)
        if len(queue) > MAX_STATES:
            raise RuntimeError(f"Sokoban's solver gave up after {MAX_STATES} states in a room of side {room.side}")
    return None


def _path(came: dict[tuple[int, int], tuple[tuple[int, int], int] | None], state: tuple[int, int]) -> tuple[int, ...]:
    """The actions that led to a state of the search."""
    actions = []
    while (link := came[state]) is not None:
        state, action = link
        actions.append(action)
    return tuple(reversed(actions))


def grid(room: Room, player: int, boxes: int) -> str:
    """The room as text: one symbol a cell, cells separated by spaces, rows by newlines."""
    cells = ["_" if max(row) >= 0 else "#" for row in room.moves]
    for target in members(room.targets):
        cells[target] = "O"
    for box in members(boxes):
        cells[box] = "*" if room.targets >> box & 1 else "X"
    cells[player] = "S" if room.targets >> player & 1 else "P"
    return "\n".join(" ".join(cells[i : i + room.side]) for i in range(0, room.side**2, room.side))


def draw_room(rng: Rng, options: SokobanOptions) -> Room | None:
    """A random connected room with targets; None when less than half of it is floor, which few tasks would share."""
    side = options.size - 2
    count = options.min_walls + int(rng.random() * (options.max_walls - options.min_walls + 1))
    *walls, seed_cell = draw_distinct(rng, count + 1, side**2)
    moves = make_moves(side, sum(1 << wall for wall in walls))
    floor = [seed_cell]
    for cell in floor:
        floor.extend({n for n in moves[cell] if n >= 0 and n not in floor})
    if 2 * len(floor) < side**2:
        return None
    floor.sort()  # the order above depends on how sets iterate
    moves = make_moves(side, ((1 << side**2) - 1) & ~sum(1 << cell for cell in floor))
    targets = sum(1 << floor[i] for i in draw_distinct(rng, options.boxes, len(floor)))
    return Room(side, moves, targets, dead_cells(moves, targets))


def draw_level(rng: Rng, room: Room, split: Split, options: SokobanOptions) -> Level | None:
    """A start in the room that belongs to `split`, its solution length uniform within the bounds; None if none came."""
    layers = solvable_states(room, options.max_solution)
    lengths = [d for d in range(options.min_solution, len(layers)) if layers[d]]
    for _ in range(STARTS_PER_ROOM if lengths else 0):
        length = choose(rng, lengths)
        player, boxes = choose(rng, layers[length])
        key = task_key_of("Sokoban", grid(room, player, boxes))
        if split_of(key) == split:
            return Level(room, player, boxes, length, key)
    return None


@lru_cache(maxsize=4096)
def generate(seed: int, split: Split, options: SokobanOptions) -> Level:
    """The level of `seed`: rooms and starts are drawn until one belongs to `split`."""
    rng = random.Random(f"Sokoban {seed}")
    for _ in range(MAX_DRAWS // STARTS_PER_ROOM):
        room = draw_room(rng, options)
        level = None if room is None else draw_level(rng, room, split, options)
        if level is not None:
            return level
    raise no_task("Sokoban", options)


class Sokoban(GridEnv):
    """Push every box onto a target: -0.1 an action, +1 a box onto a target, -1 off it, +10 when all are there."""

    name = "Sokoban"
    Options = SokobanOptions
    actions = ("Left", "Down", "Right", "Up")
    glyphs = "PXO#_*S"
    options: SokobanOptions
    wording = Wording(
        facts={
            "player": ("i am at {}", "at {}", "player {}", "standing on {}", "now on {}"),
            "box": ("box at {}", "box {}", "the box is on {}", "must push {}"),
            "target": ("target {}", "target at {}", "goes to {}", "must get to {}", "want {}"),
        },
        plans=("so {}", "so go {}", "i move {}", "best is {}", "plan {}"),
        generic=(
            ("let me think", "okay", "i look around", "i must be careful", "first of all"),
            ("walls are hard", "boxes can get stuck", "every push counts", "the target is near", "mind the corners"),
            ("so i move on", "and i try this way", "and keep pushing", "so take the best move", "step by step"),
        ),
    )

    @property
    def side(self) -> int:
        return self.options.size - 2

    def instruction(self) -> str:
        return "Push box X onto target O . P you # wall _ floor * X on O S P on O ."

    @classmethod
    def step_rewards(cls) -> tuple[float, ...]:
        return (ACTION_REWARD, ACTION_REWARD + BOX_REWARD, ACTION_REWARD - BOX_REWARD)

    def observation(self) -> str:
        return grid(self._level.room, self._player, self._boxes)

    def task_key(self) -> str:
        return self._level.key

    def solution(self) -> list[str] | None:
        path = solve(self._level.room, self._player, self._boxes)
        return None if path is None else [self.actions[action] for action in path]

    def _load(self, seed: int) -> dict[str, Any]:
        self._level = generate(seed, self.split, self.options)
        self._player, self._boxes = self._level.player, self._level.boxes
        return {"solution_length": self._level.solution_length}

    def _move(self, action: str) -> float:
        targets, before = self._level.room.targets, self._boxes
        after = advance(self._level.room.moves, self._player, self._boxes, self.actions.index(action))
        if after is not None:
            self._player, self._boxes = after
        placed = (self._boxes & targets).bit_count() - (before & targets).bit_count()
        return ACTION_REWARD + BOX_REWARD * placed + (DONE_REWARD if self._succeeded() else 0.0)

    def _details(self) -> dict[str, Any]:
        return {"deadlock": bool(self._boxes & self._level.room.dead)}

    def _terminated(self) -> bool:
        return self._succeeded()

    def _succeeded(self) -> bool:
        return self._boxes == self._level.room.targets

    def _facts(self, rng: Rng) -> dict[str, Cell]:
        side, targets = self.side, self._level.room.targets
        facts = {"player": divmod(self._player, side)}
        for name, mask in (("box", self._boxes & ~targets), ("target", targets & ~self._boxes)):
            if mask:
                facts[name] = divmod(members(mask)[0], side)
        return facts
