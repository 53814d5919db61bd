"""A version's weights in a block of a GPU's memory, through which processes on that GPU pass them.

The writer keeps one block, which each version overwrites. A version has a *ticket*: an empty sealed memory of the
writer (`actors.weights_file`), which only processes of its host can open. A reader holds its lock while it reads.

| waits | for | unblocked by | on time-out |
|---|---|---|---|
| writer, before it overwrites a version | its readers | their end or death | it goes on; the late reader notices |
| reader | nothing: without the ticket it takes another way | | |

Invariants:

- The block's last word is the version's number, and 0 while the block is being written. A reader compares the digest of
  all parameters before it uses them, and the last word before and after: weights that were overwritten meanwhile are an
  error, never served.
- Handle, sizes and number are plain bytes and integers; both ends derive the layout from the version's table.
- A reader's copy of the block is closed before it gives up the ticket.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from squelch.actors.device_sums import DeviceDigest
from squelch.actors.gpus.memory import GpuMemory, GpuRefused
from squelch.actors.messages import OnGpu, SharedWeights, TensorEntry
from squelch.actors.weight_group import Bucket, buckets, fill, views
from squelch.actors.weights_file import Unreachable, WeightsFile

_NUMBER_BYTES = 8
_WHOLE = 1 << 62
"""No version has so many bytes, so that it is one bucket."""


def layout(table: Sequence[TensorEntry]) -> Bucket:
    """Where the parameters of a version lie in its block."""
    return next(iter(buckets(table, _WHOLE)), Bucket((), (), 0))


class GpuWeights:
    """The writer's end, for versions with the parameters of `table`. GpuRefused if the GPU has no room, or its driver
    cannot export memory."""

    def __init__(self, memory: GpuMemory, table: Sequence[TensorEntry]) -> None:
        self.table, self._memory, self._layout = tuple(table), memory, layout(table)
        self._block, self._handle = memory.allocated(self._layout.num_bytes + _NUMBER_BYTES)
        self._ticket: WeightsFile | None = None
        self._filled = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of the block."""
        return self._block.numel()

    def begin(self, timeout_s: float) -> bool:
        """Takes back the present version once its readers have ended, or after `timeout_s`; whether they have ended."""
        ticket, self._ticket = self._ticket, WeightsFile()
        ended = ticket is None or ticket.left(timeout_s)
        if ticket is not None:
            ticket.close()
        self._number(0)
        self._filled = 0
        return ended

    def add(self, name: str, tensor: Tensor) -> None:
        """Copies the next parameter. ValueError if it is not the table's next."""
        entry, offset = self._layout.entries[self._filled], self._layout.offsets[self._filled]
        fill(self._block, offset, entry, (name, tensor))
        self._filled += 1

    def seal(self) -> SharedWeights:
        """Ends the writing; what other processes need to read the version."""
        assert self._ticket is not None and self._filled == len(self.table), "begin, then every parameter"
        number = 1 + secrets.randbits(62)
        self._number(number)
        gpu = OnGpu(self._memory.gpu, self._handle, self._block.numel(), number)
        return replace(self._ticket.seal(), gpu=gpu)

    def piece(self, start: int, num_bytes: int) -> Tensor:
        """Bytes of the block, without a copy."""
        return self._block[start : start + num_bytes]

    def _number(self, number: int) -> None:
        _last(self._block).fill_(number)
        self._memory.settle()


@contextmanager
def read(
    memory: GpuMemory, gpu: OnGpu, table: Sequence[TensorEntry], checksum: str
) -> Iterator[list[tuple[str, Tensor]]]:
    """A version's parameters in another process's block, which are not to be used after the context; the process holds
    the ticket, or its parent does.

    Raises Unreachable if the weights are not there, or not those of `checksum`; RuntimeError at the end if they were
    overwritten in the context.
    """
    where = layout(table)
    size = where.num_bytes + _NUMBER_BYTES
    with ExitStack() as opened:
        try:
            if memory.gpu != gpu.gpu:
                raise Unreachable(f"the weights are on {gpu.gpu}, and this process is on {memory.gpu}")
            if size != gpu.num_bytes:
                raise Unreachable(f"the block on {gpu.gpu} has {gpu.num_bytes} bytes, and its table {size}")
            data = opened.enter_context(memory.opened(gpu.handle, gpu.num_bytes))
        except GpuRefused as error:
            raise Unreachable(f"the block on {gpu.gpu} cannot be opened: {error}") from error
        try:
            found = views(data, where)
            _require(data, gpu, found, checksum)
            yield found
            memory.settle()
            if int(_last(data)) != gpu.number:
                raise RuntimeError(f"the weights on {gpu.gpu} were overwritten while they were read")
        finally:
            del data  # before the block is closed


def _require(data: Tensor, gpu: OnGpu, found: Sequence[tuple[str, Tensor]], checksum: str) -> None:
    digest = DeviceDigest()
    for name, tensor in found:
        digest.add(name, tensor)
    digits = digest.hexdigest()
    if int(_last(data)) != gpu.number:
        raise Unreachable(f"the block on {gpu.gpu} holds another version: newer weights replaced it")
    if digits != checksum:
        raise Unreachable(f"the weights on {gpu.gpu} have digest {digits}, published was {checksum}")


def _last(block: Tensor) -> Tensor:
    return block[-_NUMBER_BYTES:].view(torch.int64)[0]
