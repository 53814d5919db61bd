"""CUDA's own calls of `actors.gpus.memory`: a block that another process opens by its handle."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from squelch.actors.gpus.memory import HANDLE_BYTES, GpuMemory, GpuRefused

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
SIZE = (3 << 20) + 8
READER = """
import sys, torch
from squelch.actors.gpus.memory import GpuMemory
memory = GpuMemory(torch.device("cuda", 0))
for _ in range(2):
    with memory.opened(bytes.fromhex(sys.argv[1]), int(sys.argv[2])) as block:
        print(memory.gpu, int(block.long().sum()), block.is_cuda)
        block[:8] = 7
        memory.settle()
"""


def test_another_process_reads_and_writes_a_block_by_its_handle_more_than_once() -> None:
    memory = GpuMemory(torch.device("cuda"))
    block, handle = memory.allocated(SIZE)
    block.fill_(3)
    memory.settle()
    assert len(handle) == HANDLE_BYTES and block.shape == (SIZE,) and block.is_cuda
    found = subprocess.run(
        [sys.executable, "-c", READER, handle.hex(), str(SIZE)], capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == [memory.gpu, str(3 * SIZE), "True", memory.gpu, str(3 * SIZE + 8 * 4), "True"]
    pages = memory.pages(SIZE)
    memory.fetch(block, pages)
    assert pages.is_pinned() and pages[:8].tolist() == [7] * 8 and (pages[8:] == 3).all()


def test_a_handle_of_nothing_and_more_memory_than_there_is_are_refused() -> None:
    memory = GpuMemory(torch.device("cuda"))
    refused = pytest.raises(GpuRefused, match="the driver refuses cuIpcOpenMemHandle_v2: CUDA_ERROR")
    with refused, memory.opened(bytes(HANDLE_BYTES), SIZE):
        pass
    with pytest.raises(GpuRefused, match="the driver refuses cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY"):
        memory.allocated(1 << 50)
