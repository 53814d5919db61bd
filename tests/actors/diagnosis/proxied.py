"""Table 1 of a score matrix in one call."""

from typing import Any

import numpy as np

from squelch.actors.diagnosis.proxies import Proxies, proxies_of_scores, scores_of_matrix, usable


def proxies(matrix: np.ndarray, lengths: np.ndarray, prompt_id: np.ndarray | None = None, **options: Any) -> Proxies:
    """Of a matrix (N, K, N)."""
    return proxies_of_scores(scores_of_matrix(matrix, lengths, prompt_id), **options)


def proxies_of_samples(matrix: np.ndarray, lengths: np.ndarray, source: np.ndarray, **columns: Any) -> Proxies:
    """Of any number of samples per prompt; `columns`: as of `usable`."""
    return proxies_of_scores(usable(matrix, lengths, source, **columns))
