"""Finds equal sequences and their common prefixes, for the learner, the scorer and the warm-up. Pure.

Sequences are compared by content, i.e. ids and pictures. Every picture is fed as the same placeholder ids, so ids alone
do not distinguish pictures; `identities` does. All other functions here compare identities. The identity of a sequence
without pictures is its ids.

Each user saves computation on a shared prefix in its own way:

- The learner needs gradients from every row through the shared tokens, hence one pass over all rows. It packs the rows
  into a forest in which every token attends along its path (`kit.packed.packing`).
- The scorer needs no gradient, and has more pairs of prompt and reasoning than fit into one pass. It reuses the keys
  and values of a prefix in several passes (`kit.scoring.cross_scoring`).
- The warm-up gives every batch the system message's keys and values, with their gradient (`learner.warmup.training`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from squelch.kit.records.content import Picture


def identities(rows: Sequence[np.ndarray], pictures: Sequence[Sequence[Picture]]) -> list[np.ndarray]:
    """Rows of numbers that are equal at a position if and only if both rows have the same id and picture there.

    Args:
        rows: (length,) token ids each, at least 0.
        pictures: the pictures of each row; a picture that begins after the row's last token is ignored.

    Returns:
        The rows themselves if none has a picture. Otherwise int64 copies with a negative number at each position where
        a picture begins, which encodes the id and the digest; numbers of different calls must not be compared.
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
    """Indices of the rows in lexicographic order, (num_rows,): rows with a common prefix are neighbours."""
    keys = [row.astype(">u4").tobytes() for row in rows]
    return np.array(sorted(range(len(rows)), key=keys.__getitem__), dtype=np.int64)


def common_lengths(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Number of leading tokens that each row shares with the row before it, (num_rows,); 0 for the first row."""
    found = np.zeros(len(rows), dtype=np.int64)
    for i in range(1, len(rows)):
        size = min(len(rows[i - 1]), len(rows[i]))
        differs = rows[i - 1][:size] != rows[i][:size]
        found[i] = differs.argmax() if differs.any() else size
    return found


def common_length(rows: Sequence[np.ndarray]) -> int:
    """Number of leading tokens that all rows share; the row's length for a single row."""
    return int(common_lengths(rows)[1:].min(initial=len(rows[0])))


def distinct(rows: Sequence[np.ndarray]) -> tuple[list[int], np.ndarray]:
    """Indices of the first row of each set of equal rows, in order of appearance, and (num_rows,) the set of each
    row."""
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
