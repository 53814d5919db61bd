"""Small pictures of a run's score matrices over its steps: a strong diagonal fades as reasonings stop to name their
prompts. Pure.

A picture has one row and one column for each prompt, or for some neighbouring ones: the mean posterior of the prompt in
the column, over the reasonings of the row's prompt. A cell has one of `LEVELS` colours, which the style sheet knows for
light and dark pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from squelch.cluster.inspector.matrices import posterior
from squelch.kit.archive.score_matrices import ScoreMatrix

MOST_PICTURES = 8
MOST_CELLS = 24
"""Cells of a picture's side."""
LEVELS = 10


@dataclass(frozen=True)
class Small:
    """The picture of one step's matrix. `paths`: for each level the SVG path of its cells, in units of cells; `found`:
    share of the reasonings whose own prompt is the likeliest of those scored; `chance`: the share by chance."""

    step: int
    size: int
    paths: tuple[str, ...]
    found: float
    chance: float


def spaced(scored: Sequence[int], most: int = MOST_PICTURES) -> list[int]:
    """At most `most` of the scored steps, evenly spaced in their order, the first and the last among them."""
    places = np.linspace(0, len(scored) - 1, min(most, len(scored))).round().astype(int)
    return [scored[place] for place in places]


def small(step: int, matrix: ScoreMatrix) -> Small:
    """The picture of a matrix."""
    likely = np.where(np.isfinite(matrix.values), matrix.values, np.nan)
    levels = _levels(by_prompt(posterior(likely), matrix.source))
    paths = tuple(
        "".join(f"M{column} {row}h1v1h-1z" for row, column in np.argwhere(levels == level)) for level in range(LEVELS)
    )
    found = float((np.nanargmax(likely, axis=1) == matrix.source).mean())
    return Small(step, len(levels), paths, found, float((1 / np.isfinite(likely).sum(axis=1)).mean()))


def by_prompt(shares: np.ndarray, source: np.ndarray) -> np.ndarray:
    """(size, size) mass of the column's prompts, mean over the reasonings of the row's; NaN where nothing was scored.

    Args:
        shares: (num_samples, num_prompts) posterior.
        source: (num_samples,) own prompt.
    """
    num_prompts = shares.shape[1]
    size = min(num_prompts, MOST_CELLS)
    block = np.arange(num_prompts) * size // num_prompts
    known, mass = np.isfinite(shares), np.nan_to_num(shares)
    total, count = np.zeros((2, size, size))
    for column in range(num_prompts):
        np.add.at(total[:, block[column]], block[source], mass[:, column])
        np.add.at(count[:, block[column]], block[source], known[:, column])
    with np.errstate(invalid="ignore"):
        return total / count * np.bincount(block)


def _levels(shares: np.ndarray) -> np.ndarray:
    """(size, size) the level of each cell, by the square root of its share as in the large picture; -1 for none."""
    scaled = np.sqrt(np.clip(np.nan_to_num(shares), 0.0, 1.0)) * (LEVELS - 1)
    return np.where(np.isfinite(shares), scaled.round().astype(int), -1)
