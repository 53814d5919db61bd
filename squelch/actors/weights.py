"""Digest of weights: the identity of a published version, which every end of a transfer computes where its copy lies.

A parameter is cut into blocks of `BLOCK_WORDS` 32-bit words. Each block has one sum of word times key, modulo 2**64.
The digest is a hash over name, type, shape and block sums of all parameters, in order. Sums take nothing but integer
additions and products, so numpy on the host (here) and torch on a device (`actors.device_sums`) get the same bits in
any order of summation.

Pure numpy: `learner.publish` and the rollout worker's engine process import this module, and neither may import
the other's framework through it.

Invariants:

- The digest depends on names, types, shapes, bytes and order. bfloat16 is passed, and named, as uint16.
- One changed bit always changes its block's sum, because keys are odd. Two words that swap places always change it,
  because the low 33 bits of a block's keys all differ, and words differ by less than 2**32.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import numpy as np

WORD_BYTES = 4
BLOCK_WORDS = 1 << 16
BLOCK_BYTES = WORD_BYTES * BLOCK_WORDS


class Digest:
    """The digest of parameters that are added in published order."""

    def __init__(self) -> None:
        import xxhash  # where no weights are published, as in benchmarks on a bare machine, nothing else needs it

        self._hash = xxhash.xxh3_128()

    def add(self, name: str, dtype: str, shape: tuple[int, ...], sums: np.ndarray) -> None:
        """Adds a parameter. `dtype`: numpy's name of its type; `sums`: (num_blocks,) int64, as from `block_sums`."""
        self._hash.update(f"{name}\0{dtype}\0{tuple(shape)}\0".encode())
        self._hash.update(np.ascontiguousarray(sums, "<i8").view(np.uint8).data)

    def hexdigest(self) -> str:
        """128 bits, hexadecimal. They guard against damage and mixed versions, not against forgery."""
        return self._hash.hexdigest()


def checksum(arrays: Iterable[tuple[str, np.ndarray]]) -> str:
    """The digest of `(name, array)` pairs, in the given order."""
    digest = Digest()
    for name, array in arrays:
        digest.add(name, array.dtype.name, array.shape, block_sums(array))
    return digest.hexdigest()


def block_sums(array: np.ndarray) -> np.ndarray:
    """(num_blocks,) int64: the sum of each block of the array's bytes, of which the last word is filled with zeros."""
    data, table = np.ascontiguousarray(array).reshape(-1).view(np.uint8), keys()
    sums = np.empty(-(-data.size // BLOCK_BYTES), np.int64)
    widened = np.empty(min(-(-data.size // WORD_BYTES), BLOCK_WORDS), np.int64)  # one block stays in the cache
    for index in range(len(sums)):
        block = data[index * BLOCK_BYTES : (index + 1) * BLOCK_BYTES]
        if block.size % WORD_BYTES:
            block = np.pad(block, (0, -block.size % WORD_BYTES))
        words = widened[: block.size // WORD_BYTES]
        words[:] = block.view(np.int32)
        sums[index] = np.dot(words, table[: len(words)])
    return sums


@cache
def keys() -> np.ndarray:
    """(BLOCK_WORDS,) int64, odd. Bits 1 to 32 are a permutation of 32-bit numbers (the finaliser of MurmurHash3), so
    they differ from key to key; the bits above are those of SplitMix64. Neither is linear in the position."""
    position = np.arange(BLOCK_WORDS, dtype=np.uint64)
    low = (position + np.uint64(0x9E3779B9)).astype(np.uint32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        low = (low ^ (low >> np.uint32(shift))) * np.uint32(factor)
    high = (position + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        high = (high ^ (high >> np.uint64(shift))) * np.uint64(factor)
    table = (high << np.uint64(33)) | (low.astype(np.uint64) << np.uint64(1)) | np.uint64(1)
    found = table.view(np.int64)
    found.flags.writeable = False
    return found
