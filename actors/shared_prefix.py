"""Which sequences are the same, and how much of their beginnings they share: the one place that everyone asks. Pure.

Two sequences are alike as far as they show the same: their ids, and the pictures that stand among them. Every picture
is fed as the same placeholder ids, so that ids alone do not tell two pictures apart; `identities` does. All other
functions here compare identities. The identity of a sequence without pictures is its ids.

The questions are the same everywhere. The computation that a shared prefix saves is not, and stays where it is done:

- The learner needs gradients from every row through the tokens that they share, hence one pass over all rows: it packs
  them into a forest in which every token attends along its path (`learner.kernels.packing`).
- The scorer needs no gradient, and has more pairs of prompt and reasoning than fit one pass: it keeps the keys and
  values of a prefix from one pass to the next (`actors.scorer.cross_scoring`).
- The warm-up gives every batch the system message's keys and values, with their gradient (`learner.warmup.training`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from actors.content import Picture


def identities(rows: Sequence[np.ndarray], pictures: Sequence[Sequence[Picture]]) -> list[np.ndarray]:
    """Numbers that are equal where, and only where, the rows show the same id and the same picture.

    Args:
        rows: (length,) token ids each, at least 0.
        pictures: those of each row; those that begin behind its last token are left out.

    Returns:
        The rows themselves where none has a picture. Otherwise copies, int64, in which a negative number stands for the
        id and the digest wherever a picture begins; the numbers compare within one call only.
    """
    marks = [_marks(row, shown) for row, shown in zip(rows, pictures, strict=True)]
    number = {mark: -1 - k for k, mark in enumerate(sorted({mark for own in marks for mark in own.values()}))}
    if not number:
        return list(rows)
    found = [np.array(row, dtype=np.int64) for row in rows]
    for row, own in zip(found, marks, strict=True):
        for position, mark in own.items():
            row[position] = number[mark]
    return found


def _marks(row: np.ndarray, pictures: Sequence[Picture]) -> dict[int, tuple[int, tuple[str, ...]]]:
    """The id and the digests at each position where pictures begin."""
    digests: dict[int, list[str]] = {}
    for picture in pictures:
        if picture.position < len(row):
            digests.setdefault(picture.position, []).append(picture.digest)
    return {position: (int(row[position]), tuple(own)) for position, own in digests.items()}


def in_order(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Indices of the rows in lexicographic order, (num_rows,): rows that begin alike are neighbours."""
    keys = [row.astype(">u4").tobytes() for row in rows]
    return np.array(sorted(range(len(rows)), key=keys.__getitem__), dtype=np.int64)


def common_lengths(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Leading tokens that each row has in common with the one before it, (num_rows,); 0 for the first."""
    found = np.zeros(len(rows), dtype=np.int64)
    for i in range(1, len(rows)):
        size = min(len(rows[i - 1]), len(rows[i]))
        differs = rows[i - 1][:size] != rows[i][:size]
        found[i] = differs.argmax() if differs.any() else size
    return found


def common_length(rows: Sequence[np.ndarray]) -> int:
    """Leading tokens that all rows have in common; all of them for one row."""
    return int(common_lengths(rows)[1:].min(initial=len(rows[0])))


def distinct(rows: Sequence[np.ndarray]) -> tuple[list[int], np.ndarray]:
    """Index of the first of each set of equal rows, in order of appearance, and for each row (num_rows,) its set's."""
    index: dict[bytes, int] = {}
    first: list[int] = []
    inverse = np.zeros(len(rows), dtype=np.int64)
    for place, row in enumerate(rows):
        key = np.asarray(row, dtype=np.int64).tobytes()
        if key not in index:
            index[key] = len(first)
            first.append(place)
        inverse[place] = index[key]
    return first, inverse
