"""Scores reasonings under other prompts' pictures or texts alone (`kit.diagnosis.modality`): those of the fixed
probe's tasks, and those of the trajectory scope, whose contexts count as tasks.

Pictures are swapped together, and only between prompts of one layout: as many pictures, of the same sizes. Imports
neither torch nor Ray.

Invariants:

- A pair that was scored anyway is not scored again: where all texts are equal, the other prompts are the own one with
  other pictures.
- Partners are the nearest of a layout in one random order, in which each is near to those that are near to it: so the
  prompt with the text of one and the pictures of another serves both.
- Every evaluation has every key; unknown metrics are NaN, and all are without pictures.
- `blank`, the loss under pixels of the pictures' mean colour, is no estimate of MI: such a prompt is off the
  distribution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from squelch.kit.diagnosis.metrics import MODALITY_KEYS, PARTS
from squelch.kit.diagnosis.modality import PartEvaluation, counted, read_part, text_alone
from squelch.kit.records import pictures as envs_pictures
from squelch.kit.records.content import Picture, content_key
from squelch.kit.scoring.settings import PROBE_OTHERS

if TYPE_CHECKING:
    from squelch.kit.scoring.cross_scoring import CrossScorer

Shown = tuple[Picture, ...]
WHERE = "MI by modality"
"""Where pictures are decoded, for errors."""


class Drawn(Protocol):
    """What is read of n reasonings and their prompts, such as of a `ProbeDraw` or a `Draw`."""

    @property
    def prompts(self) -> Sequence[np.ndarray]:
        """The ids of each prompt."""

    @property
    def pictures(self) -> Sequence[Shown]:
        """Those of each prompt."""

    @property
    def reasonings(self) -> Sequence[np.ndarray]:
        """The ids of each reasoning."""

    @property
    def source(self) -> np.ndarray:
        """(n,) the prompt of each reasoning."""


def modality_metrics(
    engine: CrossScorer,
    draw: Drawn,
    matrix: np.ndarray | None,
    seed: Sequence[int],
    others: int = PROBE_OTHERS,
    blank: bool = True,
) -> dict[str, float]:
    """The metrics of an evaluation.

    Args:
        matrix: (n, num_prompts) nats per sequence of the draw's reasonings under its prompts, NaN for pairs that were
            not scored; None if none was.
        seed: of the partners, and of the nulls.
        others: partners of each prompt, beside the pairs scored anyway.
        blank: whether to score under blank pictures too, and to have their key.
    """
    found = {key: math.nan for key in MODALITY_KEYS if blank or key != "blank"}
    if matrix is None or not any(draw.pictures):
        return found
    own = matrix[np.arange(len(matrix)), draw.source]
    if not np.isfinite(own).any():
        return found
    swaps = _Swaps(draw, matrix, np.flatnonzero(np.isfinite(own)), seed)
    values, used = swaps.scored(engine, others, blank), swaps.rows
    read: dict[str, PartEvaluation | None] = {
        name: read_part(values[name][used], draw.source[used], swaps.parts[name], seed) for name in PARTS
    }
    for name, evaluation in read.items():
        found |= {} if evaluation is None else evaluation.metrics(name)
    both = counted(values["text"][used], draw.source[used], swaps.parts["text"])
    same = both.all() or not both.any()  # without any, D_T is not known, whatever D_V is
    compared = read["picture"] if same else _compared(values["picture"], used[both], draw.source, swaps, seed)
    verdict = text_alone(compared, read["text"])
    found["text_alone"] = math.nan if verdict is None else float(verdict)
    if blank and np.isfinite(loss := own - values["blank"][:, 0]).any():
        found["blank"] = float(np.nanmean(loss))
    return found


def _compared(
    values: np.ndarray, rows: np.ndarray, source: np.ndarray, swaps: _Swaps, seed: Sequence[int]
) -> PartEvaluation | None:
    """D_V of the reasonings that count in D_T, `rows`: first turns may share one text, and what they take from their
    pictures says nothing about later turns."""
    return read_part(values[rows], source[rows], swaps.parts["picture"], seed)


class _Swaps:
    """The prompts with a part of another task, and what is known of them."""

    def __init__(self, draw: Drawn, matrix: np.ndarray, rows: np.ndarray, seed: Sequence[int]) -> None:
        """`rows`: the reasonings that count; `seed`: of the order in which partners are near."""
        self.draw, self.matrix, self.rows = draw, matrix, rows
        shown = [tuple(one.digest for one in own) for own in draw.pictures]
        texts = [content_key(ids) for ids in draw.prompts]
        self.parts = {"picture": _numbered(shown), "text": _numbered(texts)}
        size = {one.digest: one.decoded(WHERE).size for own in draw.pictures for one in own}
        self.layout = _numbered([tuple(size[one.digest] for one in own) for own in draw.pictures])
        self.order = np.random.default_rng(seed).permutation(len(draw.prompts))
        self.keys = list(zip(self.parts["text"].tolist(), self.parts["picture"].tolist(), strict=True))
        self.place = {key: j for j, key in enumerate(self.keys)}
        self.prompts: list[tuple[np.ndarray, Shown]] = list(zip(draw.prompts, draw.pictures, strict=True))
        self.wanted: set[tuple[int, int]] = set()

    def scored(self, engine: CrossScorer, others: int, blank: bool) -> dict[str, np.ndarray]:
        """(n, num_prompts) for each part, NaN for what was not scored; (n, 1) for `blank`."""
        asked: list[tuple[str, int, int, int]] = []
        for s in self.rows.tolist():
            i = int(self.draw.source[s])
            for name in PARTS:
                asked += [(name, s, j, column) for j, column in self._others(name, s, others)]
            asked += [(name, s, i, i) for name in PARTS]
            if blank and self.draw.pictures[i]:
                asked.append(("blank", s, 0, self._blank(s, i)))
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

    def _others(self, name: str, s: int, others: int) -> list[tuple[int, int]]:
        """Tasks of the layout with another part, and the places of the prompts with that part: those under which the
        reasoning was scored anyway, and the nearest of the rest up to `others` in all."""
        i, num = int(self.draw.source[s]), self.matrix.shape[1]
        ring = self.order[(self.layout == self.layout[i])[self.order] & bool(self.draw.pictures[i])]
        away = np.abs(np.arange(len(ring)) - np.argmax(ring == i)) if len(ring) else np.zeros(0, np.int64)
        near = ring[np.argsort(np.minimum(away, len(ring) - away), kind="stable")]
        candidates = near[self.parts[name][near] != self.parts[name][i]]
        keys = [self._key(name, i, j) for j in candidates.tolist()]
        places = [self.place.get(key, num) for key in keys]
        known = [at < num and not np.isnan(self.matrix[s, at]) for at in places]
        left = max(0, others - sum(known))
        found = []
        for j, key, is_known in zip(candidates.tolist(), keys, known, strict=True):
            left -= not is_known
            if is_known or left >= 0:
                found.append((j, self._column(s, key, lambda j=j: self._swapped(name, i, j))))
        return found

    def _key(self, name: str, i: int, j: int) -> tuple[int, int]:
        """That of the prompt of task i with task j's part: the numbers of its text and of its pictures."""
        (text, _), (_, pictures) = (self.keys[k] for k in ((i, j) if name == "picture" else (j, i)))
        return text, pictures

    def _blank(self, s: int, i: int) -> int:
        """The place of task i's prompt with blank pictures, whose number is negative."""
        text, pictures = self.keys[i]
        return self._column(s, (text, -1 - pictures), lambda: (self.draw.prompts[i], _blank(self.draw.pictures[i])))

    def _column(self, s: int, key: tuple[int, int], make: Callable[[], tuple[np.ndarray, Shown]]) -> int:
        """The prompt's place, which `make` makes if it is new; its pair with the reasoning is scored if it is not
        known."""
        column = self.place.setdefault(key, len(self.prompts))
        if column == len(self.prompts):
            self.prompts.append(make())
        if column >= self.matrix.shape[1] or np.isnan(self.matrix[s, column]):
            self.wanted.add((s, column))
        return column

    def _values(self, engine: CrossScorer) -> np.ndarray:
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


def _blank(pictures: Shown) -> Shown:
    """The pictures, each in one colour: the mean of them all."""
    shown = [one.decoded(WHERE).rgb for one in pictures]
    colour = np.concatenate([rgb.reshape(-1, 3) for rgb in shown]).mean(axis=0).round().astype(np.uint8)
    found = [envs_pictures.Picture(np.broadcast_to(colour, rgb.shape)) for rgb in shown]
    return tuple(Picture.of(one.position, blank) for one, blank in zip(pictures, found, strict=True))
