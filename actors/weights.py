"""Checksum of weights, which both ends of a transfer compute.

Pure numpy: the learner's publication and the rollout worker's engine process import this module, and neither may import
the other's framework through it.

Invariant: the digest depends on names, types, shapes, bytes and order, so a swapped, missing or changed parameter
changes it. bfloat16 is passed, and hashed, as uint16.
"""

import hashlib
from collections.abc import Iterable

import numpy as np

_DIGEST_BYTES = 16


def checksum(arrays: Iterable[tuple[str, np.ndarray]]) -> str:
    """Hexadecimal BLAKE2b (128 bits) over `(name, contiguous array)` pairs, in the given order."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for name, array in arrays:
        digest.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
