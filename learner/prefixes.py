"""Shared openings: tokens that several rows of a micro-batch begin with go through the model once. Pure numpy.

Invariant: a prefix ends before the first token whose successor was sampled in any row, so that nothing that is learned
is predicted inside a prefix; every row is its prefix followed by its own tokens, exactly.
"""

from collections.abc import Sequence

import numpy as np

MIN_SAVED = 0.05
"""Share of a micro-batch's tokens that has to be saved; below it the two passes cost more than they save."""


def shared_prefixes(ids: Sequence[np.ndarray], limits: Sequence[int], width: int) -> tuple[np.ndarray, np.ndarray]:
    """Prefixes of one common length, (num_prefixes, length) int64, and the prefix of each row, (num_rows,) int64.

    `ids`: the rows' tokens; `limits`: per row, how many leading tokens a prefix may cover; `width`: of the padded rows.
    The length is the one that leaves the fewest tokens to feed; it is 0 where nothing worth while is shared.
    """
    cap = min(limits, default=0)
    none = np.zeros((1, 0), dtype=np.int64), np.zeros(len(ids), dtype=np.int64)
    if len(ids) < 2 or cap == 0:
        return none
    heads = np.stack([row[:cap] for row in ids]).astype(np.int64)
    common = _common_lengths(heads)
    fed = {
        length: (1 + sum(c < length for c in common)) * length + len(ids) * (width - length)
        for length in {*common, cap}
    }
    best = min(fed, key=lambda length: (fed[length], length))
    if fed[best] > (1 - MIN_SAVED) * len(ids) * width:
        return none
    prefixes, prefix_of = np.unique(heads[:, :best], axis=0, return_inverse=True)
    return prefixes, prefix_of.reshape(-1).astype(np.int64)


def _common_lengths(heads: np.ndarray) -> list[int]:
    """Leading tokens in common between neighbours of the rows in lexicographic order, (num_rows - 1)."""
    ordered = heads[np.lexsort(heads.T[::-1])]
    differs = ordered[1:] != ordered[:-1]
    return np.where(differs.any(1), differs.argmax(1), heads.shape[1]).tolist()
