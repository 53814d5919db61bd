"""Scores the fixed probe's reasonings under the prompts of their tasks' twins (`kit.diagnosis.hard_negatives`).

The prompts come with the evaluation (`actors.messages.Cluster`), made by an environment actor
(`actors.play.hard_negatives`). Imports neither torch nor Ray.

Invariants:

- A pair that the probe has scored anyway, such as a reasoning under a twin that is a task of the probe too, is not
  scored again.
- Every evaluation has every key; unknown metrics are NaN.
- A task is left out if its cluster was made for another prompt than the one its reasonings were sampled under.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from squelch.kit.diagnosis.hard_negatives import read_hard
from squelch.kit.records.content import Prompt, content_key
from squelch.kit.records.records import Cluster

if TYPE_CHECKING:
    from squelch.kit.scoring.cross_scoring import CrossScorer
    from squelch.kit.scoring.probe_drawing import ProbeDraw

METRICS = ("mi", "mi_low", "mi_high", "mi_standard_error", "ceiling", "answers_changed", "tasks", "pairs")
"""Keys of the metrics; `answers_changed`: share of the twins with another best answer; `pairs`: scored for this."""


def hard_metrics(
    engine: CrossScorer, draw: ProbeDraw, matrix: np.ndarray, clusters: Mapping[str, Cluster]
) -> dict[str, float]:
    """The metrics of an evaluation. `matrix`: (n, num_prompts) nats per sequence of the draw's reasonings under its
    prompts, NaN for pairs that were not scored; `clusters`: by the names of the tasks."""
    found = dict.fromkeys(METRICS, math.nan) | {"tasks": 0.0, "pairs": 0.0}
    prompts, places = _columns(draw, clusters)
    num, rows = len(draw.prompts), np.arange(len(draw.source))
    needed = np.zeros((len(rows), len(prompts)), dtype=bool)
    at, _ = np.nonzero(places >= 0)
    needed[at, places[places >= 0]] = True
    needed[:, :num] &= np.isnan(matrix)
    too_long = _too_long(engine, draw, prompts, needed)
    needed[too_long], places[too_long] = False, -1
    values = _scored(engine, draw, prompts, matrix, needed)
    others = np.where(places >= 0, values[rows[:, None], places], np.nan)
    own = values[rows, draw.source]
    usable = (places >= 0).any(axis=1) & np.isfinite(own) & (np.isfinite(others) | (places < 0)).all(axis=1)
    found["pairs"] = float(needed.sum())
    if usable.any():
        found |= read_hard(own[usable], others[usable], draw.task[usable], len(draw.tasks)).metrics()
        changed = [clusters[draw.tasks[task]].answers_changed for task in np.unique(draw.task[usable])]
        known = [share for share in changed if share is not None]
        found["answers_changed"] = float(np.mean(known)) if known else math.nan
    return found


def _columns(draw: ProbeDraw, clusters: Mapping[str, Cluster]) -> tuple[list[Prompt], np.ndarray]:
    """(The probe's prompts, and after them those of twins; for each reasoning the places of its task's twins among
    them, (n, m), -1 where there is none.)"""
    prompts = list(zip(draw.prompts, draw.pictures, strict=True))
    column = {content_key(*each): place for place, each in enumerate(prompts)}
    most = max((len(cluster.twins) for cluster in clusters.values()), default=0)
    places = np.full((len(draw.tasks), most), -1, dtype=np.int64)
    for task, source in dict(zip(draw.task.tolist(), draw.source.tolist(), strict=True)).items():
        if (cluster := clusters.get(draw.tasks[task])) is None:
            continue
        own, *twins = cluster.prompts()
        if not _begins(prompts[source], own):
            continue
        opening = prompts[source][0][len(own[0]) :]  # of the reasoning, where the policy itself samples it
        for place, (twin, shown) in enumerate(twins):
            ids = np.concatenate([twin, opening]).astype(np.int64)
            key = content_key(ids, shown)
            if key not in column:
                column[key] = len(prompts)
                prompts.append((ids, shown))
            places[task, place] = column[key]
    return prompts, places[draw.task]


def _begins(prompt: Prompt, start: Prompt) -> bool:
    """Whether a prompt begins with another one, and shows its pictures."""
    (ids, pictures), (first, shown) = prompt, start
    alike = [(one.position, one.digest) for one in pictures] == [(one.position, one.digest) for one in shown]
    return alike and np.array_equal(ids[: len(first)], first)


def _too_long(engine: CrossScorer, draw: ProbeDraw, prompts: list[Prompt], needed: np.ndarray) -> np.ndarray:
    """(n,) bool: reasonings that do not fit behind every prompt that is to be scored."""
    longest = max((len(prompts[column][0]) for column in np.flatnonzero(needed.any(axis=0))), default=0)
    return np.array([len(z) + longest > engine.context_length for z in draw.reasonings], dtype=bool)


def _scored(
    engine: CrossScorer, draw: ProbeDraw, prompts: list[Prompt], matrix: np.ndarray, needed: np.ndarray
) -> np.ndarray:
    """(n, num_columns): what is known, and the needed pairs."""
    values = np.full(needed.shape, np.nan)
    values[:, : matrix.shape[1]] = matrix
    rows, columns = np.flatnonzero(needed.any(axis=1)), np.flatnonzero(needed.any(axis=0))
    if len(rows):
        part = np.ix_(rows, columns)
        ids, pictures = zip(*(prompts[j] for j in columns), strict=True)
        found = engine.matrix(list(ids), [draw.reasonings[r] for r in rows], needed[part], list(pictures))
        values[part] = np.where(needed[part], found, values[part])
    return values
