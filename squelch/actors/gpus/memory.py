"""Blocks of a GPU's memory that other processes on the GPU can open: CUDA's calls behind one small class.

The calls go to the driver's own library, so a block is a plain allocation: PyTorch's allocator, with expandable
segments or without, neither owns nor moves it. A block's handle is `HANDLE_BYTES` plain bytes. Any number of processes
can open it, each until it closes it, but not the process that made the block. Tests put another class in its place.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

HANDLE_BYTES = 64
_LAZY_PEER_ACCESS = 1
"""CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, the only flag that the call knows."""


class GpuRefused(RuntimeError):
    """What the driver does not do, with its reason."""


class GpuMemory:
    """The memory of the GPU of `device`, on which PyTorch has been started in this process."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @property
    def gpu(self) -> str:
        """The GPU's UUID, which is the same in every process and container. GpuRefused without CUDA."""
        if not torch.cuda.is_available():
            raise GpuRefused("this process has no CUDA device")
        return str(torch.cuda.get_device_properties(self.device).uuid)

    def allocated(self, num_bytes: int) -> tuple[Tensor, bytes]:
        """A new block, (num_bytes,) uint8, and its handle; it lasts until this process ends. GpuRefused if the memory
        is short, or the driver cannot export it, as under WSL."""
        pointer, handle = ctypes.c_uint64(), _Handle()
        with self._current():
            _call("cuMemAlloc_v2", ctypes.byref(pointer), num_bytes)
            try:
                _call("cuIpcGetMemHandle", ctypes.byref(handle), pointer)
            except GpuRefused:
                _call("cuMemFree_v2", pointer)
                raise
            return self._tensor(pointer, num_bytes), bytes(handle)

    @contextmanager
    def opened(self, handle: bytes, num_bytes: int) -> Iterator[Tensor]:
        """Another process's block, (num_bytes,) uint8, which must not be used after the context. GpuRefused if the
        driver does not open it."""
        pointer = ctypes.c_uint64()
        with self._current():
            _call("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), _Handle.from_buffer_copy(handle), _LAZY_PEER_ACCESS)
        try:
            yield self._tensor(pointer, num_bytes)
        finally:
            with self._current():
                _call("cuIpcCloseMemHandle", pointer)

    def settle(self) -> None:
        """Returns once the GPU has done what this process asked of it."""
        torch.cuda.synchronize(self.device)

    def pages(self, num_bytes: int) -> Tensor:
        """Pinned memory of the host, (num_bytes,) uint8: the GPU copies into it at the bus's speed."""
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def fetch(self, source: Tensor, pages: Tensor) -> None:
        """Copies bytes of the GPU into pages, beside whatever the GPU computes; returns once they are there."""
        with torch.cuda.stream(_stream(self.device)):
            pages.copy_(source, non_blocking=True)
        _stream(self.device).synchronize()

    def _tensor(self, pointer: ctypes.c_uint64, num_bytes: int) -> Tensor:
        return torch.as_tensor(_Array(pointer.value, num_bytes), device=self.device)

    @contextmanager
    def _current(self) -> Iterator[None]:
        """Makes the GPU's context the calling thread's, which the driver's calls use."""
        with torch.cuda.device(self.device):
            torch.cuda.synchronize()
            yield


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_ubyte * HANDLE_BYTES),)


class _Array:
    """A block, for `torch.as_tensor`, which does not copy what has this attribute."""

    def __init__(self, pointer: int, num_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (num_bytes,),
            "strides": None,
            "typestr": "|u1",
            "data": (pointer, False),
            "version": 3,
        }


_POINTER = ctypes.POINTER(ctypes.c_uint64)
_CALLS = {
    "cuMemAlloc_v2": (_POINTER, ctypes.c_size_t),
    "cuMemFree_v2": (ctypes.c_uint64,),
    "cuIpcGetMemHandle": (ctypes.POINTER(_Handle), ctypes.c_uint64),
    "cuIpcOpenMemHandle_v2": (_POINTER, _Handle, ctypes.c_uint),
    "cuIpcCloseMemHandle": (ctypes.c_uint64,),
    "cuGetErrorName": (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)),
}


@cache
def _driver(library: str = "libcuda.so.1") -> ctypes.CDLL:
    try:
        found = ctypes.CDLL(library)
    except OSError as error:
        raise GpuRefused(f"the driver's library cannot be loaded: {error}") from error
    for name, types in _CALLS.items():
        call = getattr(found, name)
        call.argtypes, call.restype = types, ctypes.c_int
    return found


def _call(name: str, *arguments: object) -> None:
    driver = _driver()
    result = getattr(driver, name)(*arguments)
    if result:
        text = ctypes.c_char_p()
        driver.cuGetErrorName(result, ctypes.byref(text))
        raise GpuRefused(f"the driver refuses {name}: {(text.value or b'error').decode()} ({result})")


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
