"""Scores the fixed probe's reasonings under other tasks' pictures or texts alone (`actors.diagnosis.modality`).

Pictures are swapped together, and only between prompts of one layout: as many pictures, of the same sizes. Imports
neither torch nor Ray.

Invariants:

- A pair that the probe has scored anyway is not scored again: where all texts are equal, the other prompts are the own
  one with other pictures.
- Every evaluation has every key; unknown metrics are NaN, and all are without pictures.
- `blank`, the loss under pixels of the pictures' mean colour, is no estimate of MI: such a prompt is off the
  distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from squelch.actors.content import Picture, content_key
from squelch.actors.diagnosis.metrics import MODALITY_KEYS, PARTS
from squelch.actors.diagnosis.modality import read_part
from squelch.envs import pictures as envs_pictures

if TYPE_CHECKING:
    from squelch.actors.scorer.probe_drawing import ProbeDraw
    from squelch.actors.scorer.scorer import Engine

OTHERS = 8
"""Other tasks whose picture, or text, each task's reasonings are scored under beside the pairs scored anyway."""
Shown = tuple[Picture, ...]


def modality_metrics(engine: Engine, draw: ProbeDraw, matrix: np.ndarray, seed: Sequence[int]) -> dict[str, float]:
    """The metrics of an evaluation. `matrix`: (n, num_prompts) nats per sequence of the draw's reasonings under its
    prompts, NaN for pairs that were not scored; `seed`: of the tasks drawn, and of the nulls."""
    found = dict.fromkeys(MODALITY_KEYS, math.nan)
    own = matrix[np.arange(len(matrix)), draw.source]
    if not any(draw.pictures) or not np.isfinite(own).any():
        return found
    swaps = _Swaps(draw, matrix, np.flatnonzero(np.isfinite(own)))
    values = swaps.scored(engine, seed)
    for name in PARTS:
        used = swaps.rows
        evaluation = read_part(values[name][used], draw.source[used], swaps.parts[name], seed)
        if evaluation is not None:
            found |= evaluation.metrics(name)
    loss = own - values["blank"][:, 0]
    return found | {"blank": float(np.nanmean(loss)) if np.isfinite(loss).any() else math.nan}


class _Swaps:
    """The prompts with a part of another task, and what is known of them."""

    def __init__(self, draw: ProbeDraw, matrix: np.ndarray, rows: np.ndarray) -> None:
        """`rows`: the reasonings that count."""
        self.draw, self.matrix, self.rows = draw, matrix, rows
        shown = [tuple(one.digest for one in own) for own in draw.pictures]
        texts = [content_key(ids) for ids in draw.prompts]
        self.parts = {"picture": _numbered(shown), "text": _numbered(texts)}
        self.layout = _numbered([tuple(_size(one) for one in own) for own in draw.pictures])
        self.place = {content_key(*each): j for j, each in enumerate(zip(draw.prompts, draw.pictures, strict=True))}
        self.prompts: list[tuple[np.ndarray, Shown]] = list(zip(draw.prompts, draw.pictures, strict=True))
        self.wanted: set[tuple[int, int]] = set()

    def scored(self, engine: Engine, seed: Sequence[int]) -> dict[str, np.ndarray]:
        """(n, num_prompts) for each part, NaN for what was not scored; (n, 1) for `blank`."""
        asked: list[tuple[str, int, int, int]] = []
        for s in self.rows.tolist():
            i = int(self.draw.source[s])
            for name in PARTS:
                asked += [(name, s, j, column) for j, column in self._others(name, s, seed)]
            asked += [(name, s, i, i) for name in PARTS]
            if self.draw.pictures[i]:
                asked.append(("blank", s, 0, self._column(s, self.draw.prompts[i], _blank(self.draw.pictures[i]))))
        values, num = self._values(engine), len(self.draw.prompts)
        found = {name: np.full((len(self.matrix), num), np.nan) for name in PARTS} | {
            "blank": np.full((len(self.matrix), 1), np.nan)
        }
        for name, s, j, column in asked:
            found[name][s, j] = values[s, column]
        return found

    def _swapped(self, name: str, i: int, j: int) -> tuple[np.ndarray, Shown]:
        """The prompt of task i with task j's part."""
        text, pictures = (i, j) if name == "picture" else (j, i)
        pairs = zip(self.draw.pictures[pictures], self.draw.pictures[text], strict=True)
        return self.draw.prompts[text], tuple(replace(one, position=at.position) for one, at in pairs)

    def _others(self, name: str, s: int, seed: Sequence[int]) -> list[tuple[int, int]]:
        """Tasks of the layout with another part, and the places of the prompts with that part: `OTHERS` at random, and
        those under which the reasoning was scored anyway."""
        i, num = int(self.draw.source[s]), self.matrix.shape[1]
        same = (self.layout == self.layout[i]) & (self.parts[name] != self.parts[name][i])
        candidates = np.flatnonzero(same & bool(self.draw.pictures[i]))
        drawn = set(np.random.default_rng((*seed, i)).permutation(candidates)[:OTHERS].tolist())
        found = []
        for j in candidates.tolist():
            prompt = self._swapped(name, i, j)
            at = self.place.get(content_key(*prompt), num)
            if j in drawn or (at < num and not np.isnan(self.matrix[s, at])):
                found.append((j, self._column(s, *prompt)))
        return found

    def _column(self, s: int, ids: np.ndarray, pictures: Shown) -> int:
        """The prompt's place; its pair with the reasoning is scored if it is not known."""
        column = self.place.setdefault(content_key(ids, pictures), len(self.prompts))
        if column == len(self.prompts):
            self.prompts.append((ids, pictures))
        if column >= self.matrix.shape[1] or np.isnan(self.matrix[s, column]):
            self.wanted.add((s, column))
        return column

    def _values(self, engine: Engine) -> np.ndarray:
        """(n, num_columns): what is known, and the wanted pairs."""
        values = np.full((len(self.matrix), len(self.prompts)), np.nan)
        values[:, : self.matrix.shape[1]] = self.matrix
        if self.wanted:
            pairs = np.array(sorted(self.wanted))
            (rows, row_of), (columns, column_of) = (np.unique(each, return_inverse=True) for each in pairs.T)
            needed = np.zeros((len(rows), len(columns)), dtype=bool)
            needed[row_of, column_of] = True
            ids, pictures = zip(*(self.prompts[j] for j in columns), strict=True)
            scored = engine.matrix(list(ids), [self.draw.reasonings[s] for s in rows], needed, list(pictures))
            values[pairs[:, 0], pairs[:, 1]] = scored[row_of, column_of]
        return values


def _numbered(items: Sequence[object]) -> np.ndarray:
    """(num_items,) the same number for equal items."""
    number: dict[object, int] = {}
    return np.array([number.setdefault(item, len(number)) for item in items], dtype=np.int64)


@lru_cache(maxsize=1024)
def _rgb(picture: Picture) -> envs_pictures.Picture:
    return picture.decoded("the probe")


def _size(picture: Picture) -> tuple[int, int]:
    return _rgb(picture).size


def _blank(pictures: Shown) -> Shown:
    """The pictures, each in one colour: the mean of them all."""
    pixels = np.concatenate([_rgb(one).rgb.reshape(-1, 3) for one in pictures])
    colour = pixels.mean(axis=0).round().astype(np.uint8)
    found = [envs_pictures.Picture(np.broadcast_to(colour, _rgb(one).rgb.shape)) for one in pictures]
    return tuple(Picture.of(one.position, blank) for one, blank in zip(pictures, found, strict=True))
