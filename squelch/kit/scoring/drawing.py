"""Draws the reasonings and prompts that are scored, i.e. the samples of Table 1.

There are two scopes (paper, section 2.3). First turn: K reasonings of each group's first turn; the columns are the
distinct prompts. Trajectory: uniform trajectories with replacement, then a uniform turn of each; each draw adds its own
column (K = 1). A part of a scope (one turn, one environment) is a subset of its samples with those samples' columns.

Invariants:

- X is the exact ids that were fed in the turn's segment, up to and including the opening of the reasoning; Z is the
  sampled ids that lie completely inside the reasoning. No text is decoded and encoded again.
- A draw is a function of the groups' ids, the trajectories' indices and the seed, but not of the order of arrival.
- Prompts with the same content, ids and pictures (`kit.records.content.content_key`), are one column. Its weight is the
  mass of its draws, so that the mixture over columns equals the mixture over draws. In the first-turn scope each group
  has mass 1; in the trajectory scope each draw has mass 1.
- Reasonings that cannot be scored are counted by reason.

Pure: imports neither torch, Ray nor vLLM.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from squelch.kit.records.content import Picture, content_key
from squelch.kit.records.records import Trajectory

Groups = Mapping[str, Sequence[Trajectory]]
"""Trajectories by group id."""


@dataclass(frozen=True)
class Draw:
    """Samples to be scored.

    `prompts`: the ids of the distinct columns X_j; `pictures`: the pictures in each column; `weights`: (num_prompts,)
    float64, the columns' mass; `reasonings`: Z_s; `source`: (num_samples,) the column that Z_s was sampled under;
    `versions`: (num_samples, 2) oldest and newest policy version that sampled Z_s; `excluded`: count by reason;
    `turns`: (num_samples,) index of Z_s's turn, from 0; `groups`: (num_samples,) id of Z_s's group; `trajectories`:
    (num_samples,) index of Z_s's trajectory in its group.
    """

    prompts: list[np.ndarray]
    pictures: list[tuple[Picture, ...]]
    weights: np.ndarray
    reasonings: list[np.ndarray]
    source: np.ndarray
    versions: np.ndarray
    excluded: Mapping[str, int]
    turns: np.ndarray
    groups: np.ndarray
    trajectories: np.ndarray


@dataclass(frozen=True)
class _Sample:
    group: str
    trajectory: int
    turn: int
    prompt: np.ndarray
    pictures: tuple[Picture, ...]
    key: str
    """The prompt's content key."""
    reasoning: np.ndarray
    versions: tuple[int, int]
    mass: float


def draw_first_turn(
    groups: Groups, max_prompts: int, samples_per_prompt: int, seed: Sequence[int], oldest_version: int
) -> Draw:
    """Draws up to K = `samples_per_prompt` first-turn reasonings per group, without replacement. Groups are visited in
    random order until `max_prompts` distinct prompts are reached. Each unusable trajectory of a visited group is
    counted. A turn with a token of a version below `oldest_version` is stale."""
    rng = np.random.default_rng(seed)
    excluded: Counter[str] = Counter()
    samples: list[_Sample] = []
    for name in rng.permutation(sorted(groups)):
        if len({sample.key for sample in samples}) >= max_prompts:
            break
        ordered = sorted(groups[name], key=lambda t: t.index)
        reasons = [unusable(trajectory, 0, oldest_version) for trajectory in ordered]
        excluded.update(reason for reason in reasons if reason is not None)
        usable = [t for t, reason in zip(ordered, reasons, strict=True) if reason is None]
        size = min(samples_per_prompt, len(usable))
        chosen = np.sort(rng.choice(len(usable), size=size, replace=False)) if size else []
        samples.extend(_sample(name, usable[i], 0, 1.0 / size) for i in chosen)
    return _merged(samples, excluded)


def draw_trajectory(groups: Groups, draws: int, seed: Sequence[int], oldest_version: int) -> Draw:
    """Draws `draws` times a uniform trajectory (with replacement) that did not fail, then a uniform turn of it. An
    unusable turn is counted and not replaced by another draw."""
    rng = np.random.default_rng(seed)
    population = [(name, t) for name in sorted(groups) for t in sorted(groups[name], key=lambda t: t.index)]
    population = [(name, t) for name, t in population if t.failure is None and t.turns]
    excluded: Counter[str] = Counter()
    samples: list[_Sample] = []
    for name, trajectory in (population[i] for i in (rng.integers(len(population), size=draws) if population else ())):
        turn = int(rng.integers(len(trajectory.turns)))
        reason = unusable(trajectory, turn, oldest_version)
        if reason is None:
            samples.append(_sample(name, trajectory, turn, 1.0))
        else:
            excluded[reason] += 1
    return _merged(samples, excluded)


def within_context(draw: Draw, context_length: int) -> Draw:
    """The draw without the samples that exceed `context_length` tokens under some remaining prompt.

    Every reasoning must fit under every prompt. Until all pairs fit, either the longest prompt is removed with its own
    samples, or all reasonings that are too long under it are removed, whichever removes fewer samples.
    """
    excluded = Counter(draw.excluded)
    while draw.reasonings:
        sizes = np.array([len(x) for x in draw.prompts])
        too_long = np.array([len(z) for z in draw.reasonings]) + sizes.max() > context_length
        if not too_long.any():
            break
        own = draw.source == sizes.argmax()
        leaving = own if own.sum() <= too_long.sum() else too_long
        excluded["too_long"] += int(leaving.sum())
        draw = subset(draw, ~leaving)
    return replace(draw, excluded=dict(excluded))


def newest_version(groups: Groups) -> int:
    """The newest policy version that sampled a token in the window; -1 if no token was sampled."""
    turns = (turn for trajectories in groups.values() for t in trajectories for turn in t.turns)
    return max((turn.version_max for turn in turns), default=-1)


def version_mismatch(draw: Draw, version: int) -> float:
    """Share of the drawn reasonings' tokens that are in turns not sampled by `version` alone, in [0, 1]. For turns with
    several versions it is an upper bound of the share of other versions' tokens. 0 for an empty draw."""
    sizes = np.array([len(z) for z in draw.reasonings], dtype=np.float64)
    other = (draw.versions != version).any(axis=1)
    return float(sizes[other].sum() / sizes.sum()) if len(sizes) else 0.0


def reasoned_share(groups: Groups, first_turns: bool) -> float:
    """Share of turns that have reasoning, among the turns of the window that closed it; NaN if none did. A turn that
    never closed its reasoning may have been cut within it, and counts for neither."""
    turns = [t for ts in groups.values() for one in ts for t in (one.turns[:1] if first_turns else one.turns)]
    closed = [turn.reasoning_end > turn.reasoning_start for turn in turns if turn.reasoning_start < turn.sample_end]
    return sum(closed) / len(closed) if closed else math.nan


def marked_share(groups: Groups, first_turns: bool, opens: Callable[[np.ndarray], bool]) -> float:
    """Share of the window's turns that mark a reasoning, empty or not; NaN without a turn. `opens`: whether what was
    fed before a turn opens its reasoning."""
    found = [
        turn.reasoning_end > turn.sample_start or opens(one.prompt_ids(number))
        for ts in groups.values()
        for one in ts
        for number, turn in enumerate(one.turns[:1] if first_turns else one.turns)
    ]
    return sum(found) / len(found) if found else math.nan


def unusable(trajectory: Trajectory, index: int, oldest_version: int) -> str | None:
    """The reason, one of `kit.scoring.metrics.EXCLUSIONS`, why that turn's reasoning cannot be scored, or None."""
    return "failed" if trajectory.failure is not None else unusable_turn(trajectory, index, oldest_version)


def unusable_turn(trajectory: Trajectory, index: int, oldest_version: int) -> str | None:
    """As `unusable`, whatever became of the trajectory after the turn."""
    if index >= len(trajectory.turns):
        return "no_turn"
    turn = trajectory.turns[index]
    if turn.reasoning_end <= turn.reasoning_start:
        return "unclosed" if turn.reasoning_start >= turn.sample_end else "empty"
    return "stale" if turn.version_min < oldest_version else None


def _sample(group: str, trajectory: Trajectory, index: int, mass: float) -> _Sample:
    turn = trajectory.turns[index]
    prompt = np.asarray(trajectory.prompt_ids(index), dtype=np.int64)
    reasoning = np.asarray(trajectory.reasoning_ids(index), dtype=np.int64)
    pictures = trajectory.prompt_pictures(index)
    key, versions = content_key(prompt, pictures), (turn.version_min, turn.version_max)
    return _Sample(group, trajectory.index, index, prompt, pictures, key, reasoning, versions, mass)


def _merged(samples: list[_Sample], excluded: Counter[str]) -> Draw:
    """A draw with one column for each distinct prompt, in order of appearance."""
    column: dict[str, int] = {}
    source = np.array([column.setdefault(s.key, len(column)) for s in samples], dtype=np.int64)
    shown = {s.key: s for s in samples}
    weights = np.bincount(source, weights=[s.mass for s in samples], minlength=len(column))
    prompts, pictures = [shown[key].prompt for key in column], [shown[key].pictures for key in column]
    versions = np.array([s.versions for s in samples], dtype=np.int64).reshape(-1, 2)
    turns, groups = np.array([s.turn for s in samples], dtype=np.int64), np.array([s.group for s in samples], dtype=str)
    trajectories = np.array([s.trajectory for s in samples], dtype=np.int64)
    reasonings = [s.reasoning for s in samples]
    mass = weights.astype(np.float64)
    return Draw(prompts, pictures, mass, reasonings, source, versions, dict(excluded), turns, groups, trajectories)


def columns_of(draw: Draw, keep: np.ndarray) -> np.ndarray:
    """Indices, ascending, of the columns that `subset` keeps; `keep`: (num_samples,) bool."""
    return np.unique(draw.source[keep])


def subset(draw: Draw, keep: np.ndarray) -> Draw:
    """The draw of the kept samples, (num_samples,) bool, and of the columns that still have a sample. A column's mass
    is multiplied by the share of its samples that are kept."""
    counts = np.bincount(draw.source, minlength=len(draw.prompts))
    left = np.bincount(draw.source[keep], minlength=len(draw.prompts))
    columns = np.flatnonzero(left)
    renumbered = np.full(len(draw.prompts), -1)
    renumbered[columns] = np.arange(len(columns))
    return Draw(
        prompts=[draw.prompts[j] for j in columns],
        pictures=[draw.pictures[j] for j in columns],
        weights=(draw.weights * left / np.maximum(counts, 1))[columns],
        reasonings=[z for z, kept in zip(draw.reasonings, keep, strict=True) if kept],
        source=renumbered[draw.source[keep]],
        versions=draw.versions[keep],
        excluded=draw.excluded,
        turns=draw.turns[keep],
        groups=draw.groups[keep],
        trajectories=draw.trajectories[keep],
    )
