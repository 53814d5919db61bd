"""How much a completion depends on its prompt, where nothing tells its reasoning from its answer.

This is no mutual information of reasoning: a right answer carries its prompt's information, so that a template that
ends in one depends on its prompt, and an echo of the prompt does so as far as numbers go. Hence no regime follows from
it and no alarm. What helps to read it:

    dependence@25 to @100   of the first quarter of each completion to all of it: of a template with an answer at its
                            end only the last part depends on the prompt, of an echo the first does
    near                    share of the completions whose own prompt is the likeliest of itself and its nearest others
    near_new                the same by the tokens that repeat no piece of the own prompt: an echo leaves few or none
    repeated                share of the tokens that do
    one_text                share of the prompts under which the most widespread completion was sampled

A piece is three tokens in a row (`kit.diagnosis.repeats`). The nearest prompts are those of the same step with the
fewest changed tokens (`kit.diagnosis.edit_distance`).

Pure numpy; imports neither torch, Ray nor vLLM.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from squelch.kit.diagnosis.edit_distance import nearest
from squelch.kit.diagnosis.metrics import COMPLETION_KEYS, POSITIONS
from squelch.kit.diagnosis.proxies import expected_hits, information, usable
from squelch.kit.diagnosis.templates import widest
from squelch.kit.diagnosis.uncertainty import Uncertainty

NEAR = 7
"""Nearest other prompts among which the own one is looked for."""


@dataclass(frozen=True)
class CompletionScores:
    """Likelihoods of n completions under all prompts. `parts`: (len(POSITIONS), n, num_prompts), of their first parts,
    the last is the whole; `new`: (n, num_prompts), of the tokens that repeat no piece of the own prompt; `fresh`: (n,)
    the number of these; `lengths`: (n,) tokens; `source`: (n,) each one's prompt; `weights`: (num_prompts,)."""

    parts: np.ndarray
    new: np.ndarray
    fresh: np.ndarray
    lengths: np.ndarray
    source: np.ndarray
    weights: np.ndarray

    @property
    def whole(self) -> np.ndarray:
        """(n, num_prompts): of the whole completions."""
        return self.parts[-1]


def completion_metrics(
    found: CompletionScores, sure: Uncertainty, prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray]
) -> dict[str, float]:
    """Flat keys below `completion/`, all of COMPLETION_KEYS; unknown values are NaN. `sure`: of the scores of the whole
    completions, as `completions` has their tokens."""
    flat = dict.fromkeys(COMPLETION_KEYS, math.nan)
    scores = [usable(part, found.lengths, found.source, found.weights) for part in found.parts]
    known = [information(one, None, "paper", 1e-3) if len(one.lengths) else {} for one in scores]
    flat |= {f"dependence@{q}": one.get("mi_seq_est", math.nan) for q, one in zip(POSITIONS, known, strict=True)}
    flat |= {"dependence": flat[f"dependence@{POSITIONS[-1]}"], "ceiling": known[-1].get("upper_bound", math.nan)}
    if (interval := sure.intervals.get("mi_seq_est")) is not None:
        flat |= {"dependence_low": interval.low, "dependence_high": interval.high}
    if (null := sure.nulls.get("mi_seq_est")) is not None:
        flat |= {"dependence_p_value": null.p_value, "dependence_null_95": null.point_95}
    near = near_columns(prompts)
    flat["near"] = _near_hits(found.whole, found.source, near)
    flat["near_new"] = _near_hits(found.new[found.fresh > 0], found.source[found.fresh > 0], near)
    flat["near_chance"] = 1 / (1 + near.shape[1])
    flat["repeated"] = float(1 - found.fresh.sum() / found.lengths.sum())
    _, under = widest((ids.tobytes(), j) for ids, j in zip(completions, found.source.tolist(), strict=True))
    flat["one_text"] = under / len(prompts)
    return flat | {"num_prompts": float(len(prompts)), "num_samples": float(len(scores[-1].lengths))}


def near_columns(prompts: Sequence[np.ndarray]) -> np.ndarray:
    """(num_prompts, at most NEAR): each prompt's nearest others, nearest first."""
    others = [[k for k in range(len(prompts)) if k != j] for j in range(len(prompts))]
    return np.array(
        [[own[place] for place in nearest(prompts[j], [prompts[k] for k in own], NEAR)] for j, own in enumerate(others)]
    )


def _near_hits(matrix: np.ndarray, source: np.ndarray, near: np.ndarray) -> float:
    """The share of rows whose own prompt is the likeliest of itself and its nearest; ties by expected value, NaN
    without a row."""
    columns = np.column_stack([source, near[source]])
    values = np.take_along_axis(matrix, columns, axis=1)
    known = np.isfinite(values).all(axis=1)
    if not known.any():
        return math.nan
    few = usable(values[known], np.ones(int(known.sum())), np.zeros(int(known.sum()), np.int64))
    return float(expected_hits(few, 1).mean())
