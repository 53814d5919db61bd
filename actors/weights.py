"""Weights as plain arrays: the checksum that both ends of a transfer compute.

Pure numpy: the learner's publication and the rollout worker's engine process import this, and neither may load the
other's framework through it.

Invariant: the digest depends on names, types, shapes, bytes and order, so that a swapped, missing, cut or flipped
parameter changes it. bfloat16 travels as uint16, and is hashed as such.
"""

import hashlib
from collections.abc import Iterable

import numpy as np

_DIGEST_BYTES = 16


def checksum(arrays: Iterable[tuple[str, np.ndarray]]) -> str:
    """Hexadecimal blake2b (128 bits) over `(name, contiguous array)` pairs, in the order given."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for name, array in arrays:
        digest.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
