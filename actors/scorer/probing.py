"""The fixed probe's readings: draws the reasonings of its tasks, scores them, and remembers the first reading.

The coordinator plays the probe's tasks with fixed request seeds (`cluster.loop.probing`). The estimator is
`actors.diagnosis.fixed_probe`. Imports neither torch nor Ray.

Invariants:

- Every reading has every key; unknown figures are NaN, and reasonings that cannot be scored are counted.
- All tokens of a reading were sampled by the version whose weights score them; others are excluded as stale.
- The prompt of a task without a usable reasoning stays a column, so that the mixture is the same at every reading.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from actors.config import ProbeConfig
from actors.content import content_key
from actors.diagnosis.budget import draw_pairs
from actors.diagnosis.fixed_probe import ProbeReading, read_probe
from actors.records import Trajectory
from actors.scorer.drawing import Groups, refuse_pictures, unusable

if TYPE_CHECKING:
    from actors.scorer.scorer import Engine

FIGURES = (
    *("mi", "mi_low", "mi_high", "mi_standard_error", "mi_upper", "mi_upper_low", "mi_upper_high"),
    *("mi_upper_standard_error", "mi_p_value", "mi_null_95", "ceiling", "saturated", "conditional_entropy"),
    *("pairs_ratio", "tasks", "samples", "mi_change", "mi_change_low", "mi_change_high", "mi_change_standard_error"),
)
"""Figures of a reading, each NaN if it is unknown."""


@dataclass(frozen=True)
class ProbeDraw:
    """What is scored. `tasks`: names of the tasks; `prompts`: ids of the distinct first prompts; `weights`:
    (num_prompts,) number of tasks with each; `reasonings`: usable first-turn reasonings, n of them; `task`, `source`:
    (n,) index of each one's task and prompt; `excluded`: number of unusable trajectories by reason."""

    tasks: tuple[str, ...]
    prompts: list[np.ndarray]
    weights: np.ndarray
    reasonings: list[np.ndarray]
    task: np.ndarray
    source: np.ndarray
    excluded: Counter[str]


def draw_probe(groups: Groups, version: int, context_length: int) -> ProbeDraw:
    """The first turns of all tasks that showed a prompt; `version`: the one that must have sampled every token."""
    prompts = {name: prompt for name in sorted(groups) if (prompt := _prompt(groups[name])) is not None}
    column: dict[str, int] = {}
    place = {name: column.setdefault(content_key(prompt), len(column)) for name, prompt in prompts.items()}
    distinct = {place[name]: prompt for name, prompt in prompts.items()}
    room = context_length - max((len(prompt) for prompt in distinct.values()), default=0)
    excluded: Counter[str] = Counter({"no_turn": sum(len(groups[name]) for name in groups if name not in prompts)})
    reasonings, task, source = [], [], []
    for index, name in enumerate(prompts):
        for trajectory in sorted(groups[name], key=lambda t: t.index):
            found = _reasoning(trajectory, version, room)
            if isinstance(found, str):
                excluded[found] += 1
                continue
            reasonings.append(found)
            task.append(index)
            source.append(place[name])
    weights = np.bincount(list(place.values()), minlength=len(column)).astype(np.float64)
    shown = [distinct[i] for i in range(len(column))]
    whose, under = np.array(task, dtype=np.int64), np.array(source, dtype=np.int64)
    return ProbeDraw(tuple(prompts), shown, weights, reasonings, whose, under, excluded)


def _prompt(trajectories: Sequence[Trajectory]) -> np.ndarray | None:
    """The ids that the first turn's reasoning was sampled under; None if no trajectory of the task has a turn."""
    for trajectory in trajectories:
        if trajectory.turns:
            return np.asarray(trajectory.token_ids[: trajectory.turns[0].sample_start], dtype=np.int64)
    return None


def _reasoning(trajectory: Trajectory, version: int, room: int) -> np.ndarray | str:
    """The ids of the first turn's reasoning, or the reason why it cannot be scored."""
    reason = unusable(trajectory, 0, version)
    if reason is not None:
        return reason
    turn = trajectory.turns[0]
    found = np.asarray(trajectory.token_ids[turn.reasoning_start : turn.reasoning_end], dtype=np.int64)
    return "too_long" if len(found) > room else found


class FixedProbe:
    """Readings of the probe under the engine's current weights; `state` holds the first one, for the change since."""

    def __init__(self, engine: Engine, config: ProbeConfig, seed: int) -> None:
        self.engine, self.config, self.seed = engine, config, seed
        self._first: dict[str, Any] | None = None

    def read(self, step: int, version: int, groups: Groups) -> dict[str, float]:
        """Figures by the registry's flat keys. `groups`: the tasks' trajectories by task name, all of `version`."""
        started, cpu = time.perf_counter(), time.thread_time()
        refuse_pictures(step, groups)
        draw = draw_probe(groups, version, self.engine.context_length)
        found = dict.fromkeys(FIGURES, math.nan) | {"samples": float(len(draw.reasonings)), "tasks": 0.0}
        excluded = draw.excluded.total()
        if len(draw.prompts) > 1 and draw.reasonings:
            matrix = self._matrix(draw)
            usable = np.where(np.isnan(matrix), True, np.isfinite(matrix)).all(axis=1)
            usable &= np.isfinite(matrix[np.arange(len(matrix)), draw.source])
            excluded += int((~usable).sum())
            if usable.any():
                found |= self._figures(self._reading(draw, matrix, usable))
        figures = {f"probe/{key}": value for key, value in found.items()}
        figures |= {"probe/step": float(step), "probe/version": float(version), "probe/num_excluded": float(excluded)}
        spent = {"seconds/probe_score": time.perf_counter() - started, "probe/cpu_seconds": time.thread_time() - cpu}
        return figures | spent

    def _reading(self, draw: ProbeDraw, matrix: np.ndarray, usable: np.ndarray) -> ProbeReading:
        lengths = np.array([len(z) for z in draw.reasonings])[usable]
        where = draw.source[usable], draw.task[usable]
        return read_probe(matrix[usable], lengths, *where, draw.tasks, draw.weights, (self.seed, 0))

    def _figures(self, reading: ProbeReading) -> dict[str, float]:
        self._first = self._first or reading.state()
        return reading.metrics() | reading.change_since(self._first)

    def _matrix(self, draw: ProbeDraw) -> np.ndarray:
        """(n, num_prompts) nats per sequence, NaN for pairs that `max_others` leaves out; the same pairs each time."""
        most = self.config.max_others
        if most is None or most >= len(draw.prompts) - 1:
            return self.engine.matrix(draw.prompts, draw.reasonings)
        wanted = draw_pairs(draw.source, len(draw.prompts), most, (self.seed, 1))
        return np.where(wanted, self.engine.matrix(draw.prompts, draw.reasonings, wanted), np.nan)

    def state(self) -> dict[str, Any] | None:
        """The first reading, for the checkpoint; plain JSON, None before it."""
        return self._first

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Restores the first reading from a checkpoint."""
        self._first = dict(state) if state is not None else None
