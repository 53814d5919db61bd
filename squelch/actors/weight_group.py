"""A process group for one purpose: learner rank 0 broadcasts weights to the engine processes of all rollout workers.

The group is separate from the learner's own process group and from those of vLLM. Its members never change: when a
rollout worker comes or goes, a new group is formed (`cluster.fleet.delivery`). The way's row says
what connects it (`actors.weight_ways`).

| call | waits for | unblocked by | on time-out |
|---|---|---|---|
| `WeightGroup` | every other member | its own constructor | RuntimeError, the group's `timeout_s` |
| `send`, `receive` | one another | the other end | RuntimeError, the group's `timeout_s` in all; the group is lost |

Invariants:

- Rank 0 sends, all others receive. Both ends derive the buckets from the same table, so nothing else is exchanged.
- Parameters travel as bytes, several in a bucket of at most `BUCKET_BYTES`; a larger parameter has its own. A member
  holds one bucket at a time.
- A bucket ends with its digest (`actors.device_sums`), computed on the device, which each receiver compares before it
  uses the bucket.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import prod
from pkgutil import resolve_name
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from squelch.actors.device_sums import folded
from squelch.actors.messages import GroupMember, TensorEntry
from squelch.actors.weight_ways import WAYS

BUCKET_BYTES = 256 << 20
ALIGNMENT = 16
"""Bytes; a tensor of any torch dtype can start at a multiple of this offset."""
DIGEST_BYTES = 8


@dataclass(frozen=True)
class Bucket:
    """Parameters that are broadcast together. `offsets`: offset of each, bytes; `num_bytes`: total, without the
    digest."""

    entries: tuple[TensorEntry, ...]
    offsets: tuple[int, ...]
    num_bytes: int


def num_bytes(entry: TensorEntry) -> int:
    """Size of a parameter, bytes."""
    return prod(entry.shape) * dtype_of(entry).itemsize


def dtype_of(entry: TensorEntry) -> torch.dtype:
    """The parameter's type; ValueError if the name is none of torch's."""
    dtype = vars(torch).get(entry.dtype)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{entry.name} has the type {entry.dtype}, which torch does not know")
    return dtype


def buckets(table: Sequence[TensorEntry], limit: int = BUCKET_BYTES) -> list[Bucket]:
    """Splits the table, in order, into buckets of at most `limit` bytes, or of one parameter."""
    found: list[Bucket] = []
    entries: list[TensorEntry] = []
    offsets: list[int] = []
    end = 0
    for entry in table:
        size = -(-num_bytes(entry) // ALIGNMENT) * ALIGNMENT
        if entries and end + size > limit:
            found.append(Bucket(tuple(entries), tuple(offsets), end))
            entries, offsets, end = [], [], 0
        entries.append(entry)
        offsets.append(end)
        end += size
    return [*found, Bucket(tuple(entries), tuple(offsets), end)] if entries else found


def fill(data: Tensor, offset: int, entry: TensorEntry, weight: tuple[str, Tensor]) -> None:
    """Copies a parameter, `(name, tensor)`, into its bytes of a bucket. ValueError if it is not the entry's."""
    name, tensor = weight
    if (name, tensor.dtype, tuple(tensor.shape)) != (entry.name, dtype_of(entry), entry.shape):
        raise ValueError(f"gathered {name} {tensor.dtype} {tuple(tensor.shape)}, but the table expects {entry}")
    data[offset : offset + num_bytes(entry)] = tensor.contiguous().view(-1).view(torch.uint8).to(data.device)


def views(data: Tensor, bucket: Bucket) -> list[tuple[str, Tensor]]:
    """The parameters in a bucket's bytes, without a copy."""
    return [
        (entry.name, data[offset : offset + num_bytes(entry)].view(dtype_of(entry)).reshape(entry.shape))
        for entry, offset in zip(bucket.entries, bucket.offsets, strict=True)
    ]


class WeightGroup:
    """One member's end of a group."""

    def __init__(self, member: GroupMember, device: torch.device | str, listener: socket.socket | None = None) -> None:
        """Joins the group as `member`; returns once all members have joined.

        Args:
            listener: rank 0's socket, which listens at the member's address and port; the group takes it over.
        """
        self.member, self.device = member, torch.device(device)
        self._begin()
        timeout = timedelta(seconds=member.timeout_s)
        handle = listener.detach() if listener is not None else None
        self._store = dist.TCPStore(
            member.address,
            member.port,
            member.size,
            is_master=member.rank == 0,
            timeout=timeout,
            wait_for_workers=False,
            master_listen_fd=handle,
        )
        prefixed = dist.PrefixStore(f"weights-{member.number}", self._store)
        self._await_everyone(prefixed)
        self._group: Any = resolve_name(WAYS[member.way].group)(prefixed, member.rank, member.size, timeout)
        self._broadcast(torch.zeros(DIGEST_BYTES, dtype=torch.uint8, device=self.device))  # NCCL connects only now

    def _await_everyone(self, store: dist.Store) -> None:
        """Returns once all members have joined: NCCL itself would wait forever for a missing member."""
        here = [f"here-{rank}" for rank in range(self.member.size)]
        store.set(here[self.member.rank], "")
        try:
            store.wait(here, self._left())
        except RuntimeError as error:
            absent = ", ".join(str(rank) for rank, key in enumerate(here) if not store.check([key]))
            raise RuntimeError(
                f"of the {self.member.size} members of weight group {self.member.number}, {absent} did not join within "
                f"{self.member.timeout_s:g} s"
            ) from error

    def _left(self) -> timedelta:
        """Time left until the deadline that `_begin` set; at least 1 ms, because 0 means no time-out."""
        return timedelta(seconds=max(self._deadline - time.monotonic(), 1e-3))

    def _begin(self) -> None:
        """Sets the deadline by which all broadcasts of a call must end."""
        self._deadline = time.monotonic() + self.member.timeout_s

    def _broadcast(self, data: Tensor) -> None:
        options = dist.BroadcastOptions()
        options.rootRank = 0
        self._group.broadcast([data], options).wait(self._left())
        if data.is_cuda:
            torch.cuda.current_stream(data.device).synchronize()

    def send(self, weights: Iterable[tuple[str, Tensor]], table: Sequence[TensorEntry]) -> None:
        """Sends the weights, which come in the table's order. ValueError if they do not match the table."""
        assert self.member.rank == 0, "only rank 0 sends"
        source = iter(weights)
        self._begin()
        for bucket in buckets(table):
            data = self._empty(bucket)
            for entry, offset in zip(bucket.entries, bucket.offsets, strict=True):
                fill(data, offset, entry, next(source, ("nothing", torch.empty(0))))
            _words(data)[-1] = folded(data[: bucket.num_bytes])
            self._broadcast(data)

    def receive(self, table: Sequence[TensorEntry]) -> Iterator[list[tuple[str, Tensor]]]:
        """Yields the parameters of each bucket, as views of one block of memory. RuntimeError if a bucket arrives
        damaged."""
        assert self.member.rank > 0, "rank 0 sends"
        self._begin()
        for number, bucket in enumerate(buckets(table)):
            data = self._empty(bucket)
            self._broadcast(data)
            if folded(data[: bucket.num_bytes]) != _words(data)[-1]:
                raise RuntimeError(f"bucket {number} of the weights, from {bucket.entries[0].name} on, is damaged")
            yield views(data, bucket)

    def _empty(self, bucket: Bucket) -> Tensor:
        return torch.zeros(bucket.num_bytes + DIGEST_BYTES, dtype=torch.uint8, device=self.device)

    def close(self) -> None:
        """Leaves the group without waiting for the others, also if a broadcast has failed."""
        self._group.abort()
        del self._group, self._store


def _words(data: Tensor) -> Tensor:
    return data.view(torch.int64)


def nccl(store: dist.Store, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroupNCCL:
    """A group between GPUs."""
    # Otherwise a broadcast that is late ends the whole process: torch's watchdog treats it as lost.
    os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
    try:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        return dist.ProcessGroupNCCL(store, rank, size, options)
    finally:
        del os.environ["TORCH_NCCL_BLOCKING_WAIT"]
