"""Scores completions under all prompts, with the parts that their dependence is read from (`kit.diagnosis.completion`).

Each completion is one row of paths (`kit.scoring.token_trees`): its beginnings, and the stretches of it that repeat no
piece of the own prompt. They share their tokens, so that a completion is fed once under each prompt.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from squelch.kit.diagnosis.completion import CompletionScores, completion_metrics
from squelch.kit.diagnosis.metrics import COMPLETION_KEYS, POSITIONS
from squelch.kit.diagnosis.proxies import proxies_of_scores, usable
from squelch.kit.diagnosis.repeats import new_tokens
from squelch.kit.diagnosis.uncertainty import uncertainty
from squelch.kit.records.content import Picture
from squelch.kit.scoring.linking import PROMPTS_AT_ONCE
from squelch.kit.scoring.token_trees import Path

if TYPE_CHECKING:
    from squelch.kit.scoring.cross_scoring import CrossScorer


def score_completions(
    engine: CrossScorer,
    prompts: Sequence[np.ndarray],
    completions: Sequence[np.ndarray],
    source: np.ndarray,
    weights: np.ndarray,
    pictures: Sequence[Sequence[Picture]] | None = None,
) -> CompletionScores:
    """The likelihoods of completions, each of at least one token and sampled under the prompt `source`, under all
    prompts, which are distinct. `weights`: (num_prompts,); `pictures`: of each prompt."""
    fresh = [new_tokens(ids, prompts[j]) for ids, j in zip(completions, source, strict=True)]
    rows = [_paths(ids, own) for ids, own in zip(completions, fresh, strict=True)]
    num, parts = len(completions), len(POSITIONS)
    found, new = np.empty((parts, num, len(prompts))), np.empty((num, len(prompts)))
    for start in range(0, len(prompts), PROMPTS_AT_ONCE):
        own = range(start, min(start + PROMPTS_AT_ONCE, len(prompts)))
        shown = None if pictures is None else [pictures[j] for j in own]
        sums = engine.path_sums([prompts[j] for j in own], [rows] * len(own), shown)
        for j, under in zip(own, sums, strict=True):
            for s, values in enumerate(under):
                found[:, s, j], new[s, j] = values[:parts], values[parts:].sum()
    lengths, counts = np.array([len(ids) for ids in completions]), np.array([own.sum() for own in fresh])
    return CompletionScores(found, new, counts, lengths, source, weights)


def completion_dependence(
    engine: CrossScorer,
    prompts: Sequence[np.ndarray],
    completions: Sequence[np.ndarray],
    source: np.ndarray,
    weights: np.ndarray,
    seed: Sequence[int],
    pictures: Sequence[Sequence[Picture]] | None = None,
) -> dict[str, float]:
    """Flat keys below `completion/`, NaN below two prompts; arguments as of `score_completions`."""
    if len(prompts) < 2:
        counts = {"num_prompts": float(len(prompts)), "num_samples": float(len(completions))}
        return dict.fromkeys(COMPLETION_KEYS, math.nan) | counts
    found = score_completions(engine, prompts, completions, source, weights, pictures)
    scores = usable(found.whole, found.lengths, source, weights)
    sure = uncertainty(scores, proxies_of_scores(scores), seed=seed)
    return completion_metrics(found, sure, prompts, completions)


def _paths(ids: np.ndarray, fresh: np.ndarray) -> list[Path]:
    """The beginnings of a completion, then the stretches of its `fresh` tokens."""
    beginnings = [Path(ids[: max(1, round(len(ids) * share / 100))]) for share in POSITIONS]
    edges = np.flatnonzero(np.diff(np.concatenate([[False], fresh, [False]])))
    return beginnings + [Path(ids[:end], int(start)) for start, end in zip(edges[::2], edges[1::2], strict=True)]
