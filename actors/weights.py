"""Checksum of weights, which both ends of a transfer compute.

Pure numpy: the learner's publication and the rollout worker's engine process import this module, and neither may import
the other's framework through it.

Invariant: the digest depends on names, types, shapes, bytes and order, so a swapped, missing or changed parameter
changes it. bfloat16 is passed, and hashed, as uint16.
"""

from collections.abc import Iterable

import numpy as np


def checksum(arrays: Iterable[tuple[str, np.ndarray]]) -> str:
    """Hexadecimal XXH3 (128 bits) over `(name, contiguous array)` pairs, in the given order. It guards against damage
    and mixed versions, not against forgery, and takes a twentieth of the time of a cryptographic hash."""
    import xxhash  # where no weights are published, as in benchmarks on a bare machine, nothing else needs it

    digest = xxhash.xxh3_128()
    for name, array in arrays:
        digest.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
