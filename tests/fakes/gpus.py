"""A GPU's memory in the host's (`actors.gpus.memory.GpuMemory`): other processes open a block by its handle, which
is plain bytes here as well."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from squelch.actors.gpus.memory import HANDLE_BYTES, GpuRefused


class FakeGpu:
    """A process's view of a GPU. `refuses`: the call that its driver refuses."""

    def __init__(self, device: torch.device | str = "cpu", gpu: str = "GPU-0", refuses: str = "") -> None:
        self.device, self.gpu, self.refuses = torch.device(device), gpu, refuses
        self.open = 0
        """Blocks of other processes that are open."""
        self._made: list[int] = []

    def allocated(self, num_bytes: int) -> tuple[Tensor, bytes]:
        if self.refuses == "allocated":
            raise GpuRefused("the driver refuses cuIpcGetMemHandle: CUDA_ERROR_NOT_SUPPORTED (801)")
        file = os.memfd_create("gpu")
        os.ftruncate(file, num_bytes)
        self._made.append(file)
        path = f"/proc/{os.getpid()}/fd/{file}"
        return _mapped(path), path.encode().ljust(HANDLE_BYTES, b"\0")

    @contextmanager
    def opened(self, handle: bytes, num_bytes: int) -> Iterator[Tensor]:
        if self.refuses == "opened":
            raise GpuRefused("the driver refuses cuIpcOpenMemHandle_v2: CUDA_ERROR_INVALID_CONTEXT (201)")
        block = _mapped(handle.rstrip(b"\0").decode())
        assert block.numel() == num_bytes and len(handle) == HANDLE_BYTES
        self.open += 1
        try:
            yield block
        finally:
            self.open -= 1

    def settle(self) -> None:
        """The host does at once what it is asked."""

    def pages(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8)

    def fetch(self, source: Tensor, pages: Tensor) -> None:
        pages.copy_(source)

    def close(self) -> None:
        """As the process's end: its blocks are gone."""
        for file in self._made:
            os.close(file)
        self._made.clear()


def _mapped(path: str) -> Tensor:
    return torch.from_numpy(np.asarray(np.memmap(path, np.uint8, "r+")))
