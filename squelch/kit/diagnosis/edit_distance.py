"""The nearest of many rows of token ids by edit distance. Pure numpy.

Its cost is bounded: only what lies between the beginning and the end that all rows have in common is compared, of that
the first `MOST_TOKENS` ids, and the distance is computed for the `SHORT_LIST` rows alone whose numbers of each token
differ least. These numbers bound the distance from below.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from squelch.kit.records.shared_prefix import common_length

MOST_TOKENS = 512
SHORT_LIST = 64


def nearest(own: np.ndarray, others: Sequence[np.ndarray], count: int) -> list[int]:
    """The places of the `count` rows nearest to `own`, nearest first, of equal ones the first; fewer if there are
    fewer."""
    if not others:
        return []
    one, *rows = _middle([own, *others])
    counts = _counts([one, *rows])
    surplus = counts[1:] - counts[0]
    least = np.maximum(np.maximum(surplus, 0).sum(axis=1), np.maximum(-surplus, 0).sum(axis=1))
    listed = np.argsort(least, kind="stable")[:SHORT_LIST]
    listed.sort()
    order = np.argsort(edit_distances(one, [rows[place] for place in listed]), kind="stable")[:count]
    return [int(listed[place]) for place in order]


def edit_distances(one: np.ndarray, rows: Sequence[np.ndarray]) -> np.ndarray:
    """(num_rows,) the fewest insertions, deletions and substitutions of an id that lead from `one` to each row."""
    longest = max(len(row) for row in rows)
    table = np.full((len(rows), longest), -1, dtype=np.int64)
    for place, row in enumerate(rows):
        table[place, : len(row)] = row
    steps = np.arange(longest + 1)
    reached = np.tile(steps, (len(rows), 1))
    for done, token in enumerate(one, start=1):
        kept = np.minimum(reached[:, 1:] + 1, reached[:, :-1] + (table != token))
        reached = np.column_stack([np.full(len(rows), done), kept])
        reached = np.minimum.accumulate(reached - steps, axis=1) + steps  # insertions
    return reached[np.arange(len(rows)), [len(row) for row in rows]]


def _middle(rows: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The rows without the beginning and the end that all have in common, at most MOST_TOKENS ids of each."""
    start = common_length(rows)
    rest = [np.asarray(row[start:], dtype=np.int64) for row in rows]
    end = common_length([row[::-1] for row in rest])
    return [row[: min(len(row) - end, MOST_TOKENS)] for row in rest]


def _counts(rows: Sequence[np.ndarray]) -> np.ndarray:
    """(num_rows, num_tokens) how often each row has each of the tokens that occur."""
    tokens = np.unique(np.concatenate(rows))
    counts = np.zeros((len(rows), len(tokens)), dtype=np.int64)
    for place, row in enumerate(rows):
        np.add.at(counts[place], np.searchsorted(tokens, row), 1)
    return counts
