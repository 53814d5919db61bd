"""The calls to the driver, on a library of a few lines of C that passes what the driver's own would get."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from squelch.actors.gpus import memory as module
from squelch.actors.gpus.memory import HANDLE_BYTES, GpuMemory, GpuRefused

DRIVER = r"""
#include <stdlib.h>
#include <string.h>
typedef struct { char reserved[64]; } Handle;
typedef unsigned long long Pointer;
int cuMemAlloc_v2(Pointer *p, size_t n) { return n > 1000 ? 2 : !(*p = (Pointer) malloc(n)); }
int cuMemFree_v2(Pointer p) { free((void *) p); return 0; }
int cuIpcGetMemHandle(Handle *h, Pointer p) {
  memset(h->reserved, 'x', 64); memcpy(h->reserved, &p, 8); h->reserved[63] = 0; return 0;
}
int cuIpcOpenMemHandle_v2(Pointer *p, Handle h, unsigned int flags) {
  if (h.reserved[8] != 'x' || h.reserved[62] != 'x' || h.reserved[63] || flags != 1) return 201;
  memcpy(p, h.reserved, 8); return 0;
}
int cuIpcCloseMemHandle(Pointer p) { ((char *) p)[0]++; return 0; }
int cuGetErrorName(int e, const char **s) { *s = e == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR"; return 0; }
"""


class OnHost(GpuMemory):
    """The driver's blocks are the host's, and no context is needed."""

    @contextmanager
    def _current(self) -> Iterator[None]:
        yield

    def _tensor(self, pointer, num_bytes: int) -> torch.Tensor:
        return torch.frombuffer((module.ctypes.c_ubyte * num_bytes).from_address(pointer.value), dtype=torch.uint8)


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OnHost:
    compiler = shutil.which("cc") or pytest.skip("no C compiler")
    (tmp_path / "driver.c").write_text(DRIVER)
    library = str(tmp_path / "libcuda.so.1")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "driver.c"], check=True)
    driver = module._driver(library)
    monkeypatch.setattr(module, "_driver", lambda: driver)
    return OnHost(torch.device("cpu"))


def test_a_block_is_opened_by_its_handle_and_closed(memory: OnHost) -> None:
    block, handle = memory.allocated(100)
    block.fill_(5)
    assert len(handle) == HANDLE_BYTES
    with memory.opened(handle, 100) as other:
        assert other.tolist() == [5] * 100
    assert block[0] == 6, "closed once"


def test_what_the_driver_refuses_is_named(memory: OnHost, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GpuRefused, match=r"refuses cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY \(2\)"):
        memory.allocated(1001)
    wrong = pytest.raises(GpuRefused, match=r"refuses cuIpcOpenMemHandle_v2: CUDA_ERROR \(201\)")
    with wrong, memory.opened(bytes(HANDLE_BYTES), 9):
        pass
    monkeypatch.undo()
    with pytest.raises(GpuRefused, match="the driver's library cannot be loaded: /no/such/libcuda"):
        module._driver("/no/such/libcuda.so.1")
