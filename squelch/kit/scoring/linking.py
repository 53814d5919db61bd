"""Scores the links of reasonings and answers: the continuations of each prompt, and the use of their likelihoods.

The pairs are n reasonings Z_s with their answers A_s, each sampled under its prompt X_s. Under each prompt X_j the
engine scores rows that begin with one reasoning (`kit.scoring.token_trees`):

    reasoning r      wanted under X_j                                       belongs to
    any              Z_r itself                                             `reasonings` [r, j], as for the MI
    any, drawn       its own answer A_r after it                            `prompts` [r, j]: X to A past Z
    of X_j           every answer of X_j after it                           `swapped` [s, r]: I(A;Z|X)
    of X_j           its own answer after each part of it                   `truncated` [r, q]
    of other X       every answer of X_j after it, for drawn r              `swapped` [s, r]: D

So the reasonings, which the MI needs anyway, are fed once, and the links add the tokens of the answers. Equal
reasonings, answers and beginnings of answers are fed once too. Pure: imports neither torch nor Ray.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from squelch.kit.diagnosis.links import LinksEvaluation, read_links
from squelch.kit.diagnosis.metrics import SHARES
from squelch.kit.records.content import Picture
from squelch.kit.scoring.token_trees import Path

if TYPE_CHECKING:
    from squelch.kit.scoring.cross_scoring import CrossScorer

PROMPTS_AT_ONCE = 8
"""Prompts whose continuations are in memory at once; the ids that all prompts share are fed once for each such set."""


@dataclass(frozen=True)
class Pairs:
    """n reasonings and their answers. `answers`: None for a reasoning whose answer is left out; `source`: (n,) index of
    each one's prompt; `task`: (n,) index of its task."""

    reasonings: Sequence[np.ndarray]
    answers: Sequence[np.ndarray | None]
    source: np.ndarray
    task: np.ndarray

    @property
    def answered(self) -> np.ndarray:
        """(n,) bool: the reasonings with an answer."""
        return np.array([answer is not None for answer in self.answers], dtype=bool)


@dataclass(frozen=True)
class LinkScores:
    """Nats, NaN for what was not scored; see the module's head. `reasonings`, `prompts`: (n, num_prompts); `swapped`:
    (n, n); `truncated`: (n, len(SHARES))."""

    reasonings: np.ndarray
    prompts: np.ndarray
    swapped: np.ndarray
    truncated: np.ndarray

    def finite(self, pairs: Pairs) -> np.ndarray:
        """(n,) bool: answers without an infinite likelihood, and with every one that the links need."""
        same = (pairs.source[:, None] == pairs.source) & pairs.answered
        broken = np.isinf(self.swapped) | (same & np.isnan(self.swapped))
        whole = np.isfinite(self.truncated).all(axis=1) & ~np.isinf(self.prompts).any(axis=1)
        return whole & ~broken.any(axis=1)


@dataclass
class _Plan:
    """Rows of one prompt. `rows`: paths by reasoning; `places`: where the likelihood of each path belongs."""

    rows: dict[bytes, dict[tuple[bytes, int], Path]] = field(default_factory=dict)
    places: dict[tuple[bytes, bytes, int], list[tuple[np.ndarray, tuple[int, int]]]] = field(default_factory=dict)

    def add(self, row: bytes, before: np.ndarray, counted: np.ndarray, array: np.ndarray, at: tuple[int, int]) -> None:
        """Asks for the likelihood of `counted` after `before`, which belongs to `array` at `at`."""
        path = Path(np.concatenate([before, counted]).astype(np.int64), len(before))
        key = path.ids.tobytes(), path.start
        self.rows.setdefault(row, {}).setdefault(key, path)
        self.places.setdefault((row, *key), []).append((array, at))

    def paths(self) -> list[list[Path]]:
        """The rows for the engine."""
        return [list(row.values()) for row in self.rows.values()]

    def fill(self, found: Sequence[np.ndarray]) -> None:
        """Puts the engine's answer for `paths` where it belongs."""
        for (row, paths), values in zip(self.rows.items(), found, strict=True):
            for key, value in zip(paths, values, strict=True):
                for array, at in self.places[(row, *key)]:
                    array[at] = value


def score_links(
    engine: CrossScorer,
    prompts: Sequence[np.ndarray],
    pairs: Pairs,
    wanted: np.ndarray,
    past: np.ndarray,
    references: np.ndarray,
    pictures: Sequence[Sequence[Picture]] | None = None,
) -> LinkScores:
    """The likelihoods that the links need.

    Args:
        prompts: the distinct prompts.
        pairs: the reasonings and their answers.
        wanted: (n, num_prompts) bool: reasonings to score under prompts.
        past: (n, num_prompts) bool: answers to score after their own reasoning; the own prompts are among them.
        references: (num_prompts, n) bool: reasonings after which a prompt's answers are scored, besides its own.
        pictures: of each prompt; None: there are none.
    """
    num, columns = len(pairs.reasonings), len(prompts)
    found = LinkScores(
        *(np.full(shape, np.nan) for shape in ((num, columns), (num, columns), (num, num), (num, len(SHARES))))
    )
    for first in range(0, columns, PROMPTS_AT_ONCE):
        chosen = range(first, min(first + PROMPTS_AT_ONCE, columns))
        plans = {j: _plan(j, pairs, wanted[:, j], past[:, j], references[j], found) for j in chosen}
        plans = {j: plan for j, plan in plans.items() if plan.rows}
        shown = None if pictures is None else [pictures[j] for j in plans]
        rows = [plan.paths() for plan in plans.values()]
        values = engine.path_sums([prompts[j] for j in plans], rows, shown) if plans else []
        for plan, sums in zip(plans.values(), values, strict=True):
            plan.fill(sums)
    found.truncated[:, -1] = np.where(pairs.answered, np.diag(found.swapped), np.nan)
    return found


def _plan(j: int, pairs: Pairs, wanted: np.ndarray, past: np.ndarray, references: np.ndarray, to: LinkScores) -> _Plan:
    plan, answered = _Plan(), pairs.answered
    answers = [(int(s), pairs.answers[s]) for s in np.flatnonzero(answered & (pairs.source == j))]
    for r, z in enumerate(pairs.reasonings):
        row, own, answer = z.tobytes(), pairs.source[r] == j, pairs.answers[r]
        if wanted[r]:
            plan.add(row, z[:0], z, to.reasonings, (r, j))
        if answer is not None and past[r]:
            plan.add(row, z, answer, to.prompts, (r, j))
        if answered[r] and (own or references[r]):
            for s, other in answers:
                plan.add(row, z, other, to.swapped, (s, r))
        if answer is not None and own:
            for q, share in enumerate(SHARES[:-1]):
                plan.add(row, z[: round(share * len(z))], answer, to.truncated, (r, q))
    return plan


def read_scored(
    pairs: Pairs, scores: LinkScores, weights: np.ndarray, num_tasks: int, seed: Sequence[int]
) -> tuple[LinksEvaluation | None, int]:
    """The links of the answers whose likelihoods are all finite and of which one at least is under a reasoning of
    another prompt, None if no answer is left; and the number of the other answers, 0 if none can be compared because
    all are of one prompt. `weights`: (num_prompts,) number of tasks with each prompt; `seed`: of the nulls'
    permutations."""
    kept = pairs.answered & scores.finite(pairs)
    broken = int((pairs.answered & ~kept).sum())
    others = ~np.isnan(scores.swapped) & (pairs.source[:, None] != pairs.source)
    while (alone := kept & ~(others & kept).any(axis=1)).any():  # each answer that goes was a reasoning for others
        if len(np.unique(pairs.source[kept])) == 1:
            return None, broken
        kept &= ~alone
        broken += int(alone.sum())
    if not kept.any():
        return None, broken
    swapped, task, source = scores.swapped[np.ix_(kept, kept)], pairs.task[kept], pairs.source[kept]
    rest = scores.prompts[kept], scores.truncated[kept], task, source, weights, num_tasks
    return read_links(swapped, *rest, seed), broken


def draw_references(
    pairs: Pairs,
    num_prompts: int,
    per_task: int | None,
    seed: Sequence[int],
    slots: tuple[np.ndarray, int] | None = None,
) -> np.ndarray:
    """(num_prompts, n) bool: for each prompt up to `per_task` random answered reasonings of each task with another
    prompt; None: all of them. `slots`: (n,) index of each reasoning among all that were sampled, and their number: the
    draw gives each of those its rank, so that one more or fewer of the others changes little."""
    slot, size = slots or (np.arange(len(pairs.task)), len(pairs.task))
    ranks = np.random.default_rng(seed).random((num_prompts, size))[:, slot]
    ranks = np.where(pairs.answered, ranks, np.inf)
    chosen = np.zeros(ranks.shape, dtype=bool)
    for task in np.unique(pairs.task):
        rows = np.flatnonzero(pairs.task == task)
        order = np.argsort(ranks[:, rows], axis=1)[:, :per_task]
        np.put_along_axis(chosen, rows[order], True, axis=1)
    return chosen & pairs.answered & (pairs.source != np.arange(num_prompts)[:, None])
