"""Block sums of weights (`actors.weights`) where a tensor lies, so that no copy has to reach the host.

Invariant: on every device the sums are those of `actors.weights.block_sums`, bit for bit: integer products and
additions modulo 2**64 do not depend on the order in which a kernel adds.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from squelch.actors.weights import BLOCK_BYTES, BLOCK_WORDS, WORD_BYTES, Digest, block_sums, keys

DEVICE_WORDS = 256 * BLOCK_WORDS
"""Words that are widened at once on a device: 128 MiB in 64 bits, and as much for the products."""


class DeviceDigest:
    """The digest of tensors that are added in published order. Their sums reach the host once, at the end."""

    def __init__(self) -> None:
        self._facts: list[tuple[str, torch.dtype, tuple[int, ...]]] = []
        self._sums: list[Tensor] = []

    def add(self, name: str, tensor: Tensor) -> None:
        """Adds a parameter; the tensor may change as soon as the device has done what it was asked to."""
        self._facts.append((name, tensor.dtype, tuple(tensor.shape)))
        self._sums.append(device_sums(tensor))

    def hexdigest(self) -> str:
        """The digest of all parameters so far, as `actors.weights.checksum` has it of their arrays."""
        digest = Digest()
        on_host = torch.cat(self._sums).cpu().split([len(sums) for sums in self._sums]) if self._sums else ()
        for (name, dtype, shape), sums in zip(self._facts, on_host, strict=True):
            digest.add(name, type_name(dtype), shape, sums.numpy())
        return digest.hexdigest()


def device_sums(tensor: Tensor) -> Tensor:
    """(num_blocks,) int64 on the tensor's device; nothing waits for the device. On the host numpy computes them, which
    works block by block in the cache."""
    if tensor.device.type == "cpu":
        return torch.from_numpy(block_sums(as_bytes(tensor).numpy()))
    return torch_sums(tensor)


def torch_sums(tensor: Tensor) -> Tensor:
    """As `device_sums`, always by torch."""
    data = as_bytes(tensor)
    if data.numel() == 0:
        return torch.empty(0, dtype=torch.int64, device=data.device)
    if data.storage_offset() % WORD_BYTES:
        data = data.clone()
    table, whole = _keys(data.device), data.numel() - data.numel() % BLOCK_BYTES
    sums = []
    for part in data[:whole].split(WORD_BYTES * DEVICE_WORDS) if whole else ():
        sums.append((part.view(torch.int32).view(-1, BLOCK_WORDS).long() * table).sum(1))
    if whole < data.numel():
        rest = data[whole:]
        words = torch.nn.functional.pad(rest, (0, -rest.numel() % WORD_BYTES)).view(torch.int32).long()
        sums.append((words * table[: words.numel()]).sum().reshape(1))
    return torch.cat(sums)


def folded(tensor: Tensor) -> Tensor:
    """One int64 on the tensor's device for all of its bytes: the block sums, summed like a block once more."""
    sums = device_sums(tensor)
    return sums[0] if sums.numel() == 1 else folded(sums)


def as_bytes(tensor: Tensor) -> Tensor:
    """The tensor's bytes, in order: (num_bytes,) uint8."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def type_name(dtype: torch.dtype) -> str:
    """numpy's name of the type in which the tensor is published: bfloat16 as its bits."""
    return "uint16" if dtype == torch.bfloat16 else str(dtype).removeprefix("torch.")


@cache
def _keys(device: torch.device) -> Tensor:
    return torch.from_numpy(keys().copy()).to(device)
