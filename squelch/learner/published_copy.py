"""The frozen copy of a published version, on rank 0: workers read it where it lies, and the object store is filled from
it while the learner goes on. Live parameters are read once, in the weight sync itself.

| copy | lies in | lasts until |
|---|---|---|
| `HostCopy` | sealed memory of the host (`actors.weights_file`) | the next training step, and until it is stored |
| `GpuCopy` | one block on the learner's GPU (`actors.gpu_weights`) | the next weight sync |

| waits | for | unblocked by | on time-out |
|---|---|---|---|
| `Copies.next` | the chunks of the present version | the thread that stores them | RuntimeError, `timeout_s` |
| `Copies.next` | readers on the GPU | their end | a warning; the late reader notices that its weights changed |

`chunk` runs in a thread of its own, one call after another; everything else in the learner's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pkgutil import resolve_name
from typing import Any

import numpy as np
import torch
from torch import Tensor

from squelch.actors.device_sums import as_bytes
from squelch.actors.gpu_weights import GpuWeights
from squelch.actors.gpus.memory import GpuMemory, GpuRefused
from squelch.actors.messages import SharedWeights, TensorEntry
from squelch.actors.weight_group import Bucket, buckets, views
from squelch.actors.weight_ways import WAYS
from squelch.actors.weights_file import ArraySpec, WeightsFile, read_arrays

log = logging.getLogger(__name__)
CHUNK_BYTES = 256 << 20
READERS_S = 60.0
"""Seconds that a weight sync waits for readers of the version before."""
Store = Callable[[int], Any]
"""Begins to store a chunk, by its number, in the background; the reference that the bundle holds."""


class Pages:
    """Pinned host memory, which one copy after another reuses: into new pages a GPU copies a tenth as fast."""

    def __init__(self, memory: GpuMemory) -> None:
        self.memory = memory
        self._held: Tensor | None = None

    def of(self, num_bytes: int) -> Tensor:
        """(num_bytes,) uint8, until the next call."""
        if self._held is None or self._held.numel() < num_bytes:
            self._held = self.memory.pages(num_bytes)
        return self._held[:num_bytes]

    def copied(self, tensor: Tensor) -> Tensor:
        """The tensor on the host, until the next call; a tensor that is there is not copied."""
        if tensor.device.type == "cpu":
            return tensor
        data = as_bytes(tensor)
        return self.of(data.numel()).copy_(data).view(tensor.dtype).reshape(tensor.shape)


class Copy:
    """A version of the parameters in `table`: `add` each, `seal`, then `stored`.

    `begun` of a class that a way names makes an empty one after those of `copies`, or None if the system refuses it.
    """

    way = ""
    """Name of the way by which workers read it (`actors.weight_ways`)."""

    def __init__(self, table: Sequence[TensorEntry], pages: Pages, store: Store) -> None:
        self.table, self.pages, self._store = tuple(table), pages, store
        self.buckets = buckets(self.table, CHUNK_BYTES)
        self._left = len(self.buckets)
        self._changed = threading.Condition()

    def add(self, name: str, tensor: Tensor) -> None:
        """Copies the next parameter."""
        raise NotImplementedError

    def seal(self) -> SharedWeights:
        """Ends the writing; what other processes need to read the version."""
        raise NotImplementedError

    def stored(self) -> tuple[Any, ...]:
        """Begins to store every chunk; the references."""
        return tuple(map(self._store, range(len(self.buckets))))

    def chunk(self, number: int) -> dict[str, np.ndarray]:
        """The arrays of a chunk, bfloat16 as its bits, until the next call."""
        try:
            return self.arrays(number)
        finally:
            with self._changed:
                self._left -= 1
                self._changed.notify_all()

    def arrays(self, number: int) -> dict[str, np.ndarray]:
        """As `chunk`, without counting it."""
        raise NotImplementedError

    def await_stored(self, timeout_s: float) -> None:
        """Returns once every chunk was taken; RuntimeError if some were not within `timeout_s`."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._left <= 0, timeout_s):
                raise RuntimeError(
                    f"{self._left} of {len(self.buckets)} chunks of the published weights were not put into the object "
                    f"store within {timeout_s:g} s"
                )

    def release(self) -> None:
        """Frees what only readers need. The chunks stay until they are stored."""


class HostCopy(Copy):
    """In sealed memory. OSError if the system has none."""

    def __init__(self, table: Sequence[TensorEntry], pages: Pages, store: Store) -> None:
        super().__init__(table, pages, store)
        self._file = WeightsFile()
        self._mapped: dict[str, np.ndarray] = {}

    @classmethod
    def begun(cls, copies: Copies, table: Sequence[TensorEntry]) -> Copy | None:
        """See `Copy`."""
        try:
            return cls(table, copies.pages, copies.store)
        except OSError as error:
            log.warning("weights are not shared in memory, and go through the object store: %s", error)
            return None

    def add(self, name: str, tensor: Tensor) -> None:
        """Copies the next parameter to the memory's end."""
        self._file.add(name, as_array(self.pages.copied(tensor)), tensor.dtype == torch.bfloat16)

    def seal(self) -> SharedWeights:
        """See `Copy`."""
        shared = self._file.seal()
        self._mapped = read_arrays(shared.path, map(ArraySpec.of, shared.arrays))
        return replace(shared, way=self.way)

    def arrays(self, number: int) -> dict[str, np.ndarray]:
        """See `Copy`; the memory is freed with its last chunk."""
        return {entry.name: self._mapped.pop(entry.name) for entry in self.buckets[number].entries}

    def release(self) -> None:
        """See `Copy`."""
        self._file.close()


class GpuCopy(Copy):
    """In the block of `weights`, which `begin` has taken back."""

    def __init__(self, weights: GpuWeights, pages: Pages, store: Store) -> None:
        super().__init__(weights.table, pages, store)
        self._weights = weights

    @classmethod
    def begun(cls, copies: Copies, table: Sequence[TensorEntry]) -> Copy | None:
        """See `Copy`; refused once, it is not tried again."""
        try:
            if copies.why_not_on_gpu:
                return None
            if copies.gpu is None or copies.gpu.table != tuple(table):
                copies.gpu = GpuWeights(copies.pages.memory, table)
        except GpuRefused as error:
            copies.why_not_on_gpu = str(error)
            return None
        if not copies.gpu.begin(READERS_S):
            log.warning("a reader of the weights before did not end within %g s; they are overwritten", READERS_S)
        return cls(copies.gpu, copies.pages, copies.store)

    def add(self, name: str, tensor: Tensor) -> None:
        """Copies the next parameter into the block."""
        self._weights.add(name, tensor)

    def seal(self) -> SharedWeights:
        """See `Copy`."""
        return replace(self._weights.seal(), way=self.way)

    def arrays(self, number: int) -> dict[str, np.ndarray]:
        """See `Copy`."""
        bucket = self.buckets[number]
        start = sum(before.num_bytes for before in self.buckets[:number])
        pages = self.pages.of(bucket.num_bytes)
        self.pages.memory.fetch(self._weights.piece(start, bucket.num_bytes), pages)
        return as_arrays(pages, bucket)


class Copies:
    """The copy of the version published last, and the next one. `transfer`: the run's way of weights; `store`: begins
    to store a chunk of the present copy."""

    def __init__(self, transfer: str, memory: GpuMemory, timeout_s: float, store: Store) -> None:
        self.transfer, self.timeout_s, self.store = transfer, timeout_s, store
        self.pages = Pages(memory)
        self.why_not_on_gpu = ""
        """The reason if the weights should be shared on the GPU and cannot be."""
        self.gpu: GpuWeights | None = None
        """The block on the GPU, which one version after another overwrites."""
        self._present: Copy | None = None

    @property
    def gpu_bytes(self) -> int:
        """Bytes of the block on the GPU, which PyTorch's allocator does not count."""
        return 0 if self.gpu is None else self.gpu.num_bytes

    def next(self, table: Sequence[TensorEntry]) -> Copy | None:
        """An empty copy for the next version, after the present one; None if the weights are not shared."""
        self.free()
        if self._present is not None:
            self._present.await_stored(self.timeout_s)
        self._present, way = None, WAYS[self.transfer]
        while self._present is None and way.copy:
            self._present = resolve_name(way.copy).begun(self, table)
            if self._present is not None:
                self._present.way = way.name
            way = WAYS[way.otherwise]
        return self._present

    def chunk(self, number: int) -> dict[str, np.ndarray]:
        """A chunk of the present copy."""
        assert self._present is not None, "a chunk is asked for by the copy's own bundle"
        return self._present.chunk(number)

    def free(self) -> None:
        """Frees the memory that workers of this host mapped: all have loaded it, and a late one reads the store."""
        if self._present is not None:
            self._present.release()


def as_arrays(data: Tensor, bucket: Bucket) -> dict[str, np.ndarray]:
    """The parameters in a bucket's bytes, which are on the host, without a copy."""
    return {name: as_array(tensor) for name, tensor in views(data, bucket)}


def as_array(tensor: Tensor) -> np.ndarray:
    """The tensor, which is on CPU, as a contiguous numpy array; bfloat16 is stored as its bits, in uint16."""
    plain = tensor.contiguous()
    return plain.view(torch.uint16).numpy() if plain.dtype == torch.bfloat16 else plain.numpy()
