"""Which tokens of a text repeat its prompt: those of each piece, `PIECE` tokens in a row, that the prompt holds too.

Pure numpy; imports neither torch, Ray nor vLLM.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

PIECE = 3
"""Tokens of a piece."""


def repeated_share(prompts: Sequence[np.ndarray], texts: Sequence[np.ndarray], source: np.ndarray) -> float:
    """Share of the tokens of all texts that repeat the own prompt, [0, 1]; NaN without a token. `source`: (num_texts,)
    the prompt of each."""
    fresh = [new_tokens(ids, prompts[j]) for ids, j in zip(texts, source, strict=True)]
    total = sum(map(len, fresh))
    return 1 - sum(int(own.sum()) for own in fresh) / total if total else math.nan


def new_tokens(completion: np.ndarray, prompt: np.ndarray) -> np.ndarray:
    """(num_tokens,) bool: the tokens of a completion outside of every piece of the prompt that it repeats."""
    found, fresh = np.isin(_pieces(completion), _pieces(prompt)), np.ones(len(completion), dtype=bool)
    for k in range(PIECE):
        fresh[k : k + len(found)] &= ~found
    return fresh


def _pieces(ids: np.ndarray) -> np.ndarray:
    """The pieces of a text, one number each; ids are below 2 ** 21."""
    if len(ids) < PIECE:
        return np.zeros(0, np.int64)
    windows = np.lib.stride_tricks.sliding_window_view(np.asarray(ids, np.int64), PIECE)
    return windows @ (1 << 21 * np.arange(PIECE, dtype=np.int64))
