"""Arrays of the caller as numpy: lists, numpy arrays, and torch tensors of any device and dtype. Imports no torch."""

from __future__ import annotations

from typing import Any

import numpy as np

from squelch.kit.base.values import known_id
from squelch.kit.untrusted.files import brief


def numbers(name: str, value: Any) -> np.ndarray:
    """The argument `name` as float64, NaN for None. Raises ValueError unless it is a rectangular array of numbers."""
    try:
        found = np.asarray(_on_the_host(value))
        if found.dtype.kind not in "fiubO":
            raise ValueError(f"it holds {found.dtype}")
        return found.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"`{name}` must be a rectangular array of numbers: {error}") from error


def labels(name: str, value: Any) -> np.ndarray:
    """The argument `name` as an array of labels, which may be numbers or texts, (n,). ValueError for any other, and for
    None, NaN or an empty text, which tell nothing apart."""
    found = np.asarray(_on_the_host(value))
    if found.ndim != 1 or found.dtype.kind not in "fiubSUO":
        raise ValueError(f"`{name}` must be one label for each row, numbers or texts; it has shape {found.shape}")
    if missing := [index for index, label in enumerate(found.tolist()) if not known_id(label)]:
        raise ValueError(
            f"`{name}` has no label in row {missing[0]} (got {brief(found[missing[0]])}), and rows without one are not "
            "of one group or prompt; give each row its label"
        )
    return found if found.dtype.kind != "O" else found.astype(str)


def token_ids(name: str, value: Any) -> np.ndarray:
    """The argument `name` as (num_tokens,) int64. ValueError unless it is one row of whole numbers from 0 on."""
    found = np.asarray(_on_the_host(value))
    if found.ndim != 1 or (len(found) and found.dtype.kind not in "iu") or (found < 0).any():
        raise ValueError(f"`{name}` must be one list of token ids, whole numbers from 0 on")
    return found.astype(np.int64)


def _on_the_host(value: Any) -> Any:
    """A tensor as a numpy array; float64 if it is of a type that numpy lacks, such as bfloat16. Others unchanged."""
    if not hasattr(value, "detach"):
        return value
    tensor = value.detach().cpu()
    return (tensor.double() if tensor.is_floating_point() else tensor).numpy()
