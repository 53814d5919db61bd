"""Weights in anonymous memory, through which processes of one host pass them. Imports neither Ray, torch nor vLLM.

A writer adds a version's parameters and seals the memory. From then on the kernel refuses every change, so whoever maps
it reads one version as long as it likes, also after the writer has closed it or has ended. Processes find the memory by
its path among the writer's open files, which the kernel gives to processes of the same user (or with the right to trace
the writer) in the same process namespace. The path and the table are plain text and numbers.

A reader holds the memory's shared lock, which the kernel releases when the reader closes it or ends, however it ends. A
writer that also has something else to reuse (`actors.gpu_weights`) waits for the exclusive one.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from squelch.actors.messages import SharedWeights

_ALIGNMENT = 64
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK
_POLL_S = 0.005


class Unreachable(RuntimeError):
    """Memory that this process cannot map, with the reason."""


@dataclass(frozen=True)
class ArraySpec:
    """Position of one parameter in the memory: `dtype` is numpy's (bfloat16 as uint16), `offset` is in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    bfloat16: bool

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> ArraySpec:
        """The specification in an entry of the table, where the shape is a list."""
        return cls(entry["name"], entry["dtype"], tuple(entry["shape"]), entry["offset"], entry["bfloat16"])


class WeightsFile:
    """The writer's end."""

    def __init__(self) -> None:
        self.name = f"squelch-weights-{secrets.token_hex(8)}"
        """No other memory of any host has this name."""
        self.table: list[dict[str, Any]] = []
        self._file = os.fdopen(os.memfd_create(self.name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "wb")

    @property
    def path(self) -> Path:
        """One of this process's open files (Linux). It disappears with `close`, and with this process."""
        return Path(f"/proc/{os.getpid()}/fd/{self._file.fileno()}")

    def add(self, name: str, array: np.ndarray, bfloat16: bool) -> None:
        """Copies one parameter to the end."""
        offset = -(-self._file.tell() // _ALIGNMENT) * _ALIGNMENT
        self._file.seek(offset)
        self._file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        spec = ArraySpec(name, array.dtype.str, array.shape, offset, bfloat16)
        self.table.append(vars(spec) | {"shape": list(spec.shape)})

    def seal(self) -> SharedWeights:
        """Ends the writing; what other processes need to map the memory."""
        size = max(self._file.tell(), 1)  # an empty file cannot be mapped
        self._file.truncate(size)
        fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, _SEALS | fcntl.F_SEAL_SEAL)
        return SharedWeights(str(self.path), self.name, size, tuple(self.table))

    def left(self, timeout_s: float) -> bool:
        """Whether all readers have closed the memory within `timeout_s`; then nobody can open it any more."""
        until = time.monotonic() + timeout_s
        while not _locked(self._file.fileno(), fcntl.LOCK_EX):
            if time.monotonic() >= until:
                return False
            time.sleep(_POLL_S)
        return True

    def close(self) -> None:
        """Frees the memory, once nobody has it mapped or open any more."""
        self._file.close()


@contextmanager
def written_arrays(
    arrays: Iterable[tuple[str, np.ndarray]], bfloat16_names: frozenset[str]
) -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    """Write arrays, in order, into memory of this process; yields its path and the table of its arrays.

    It disappears when the context exits or this process ends, even if the process is killed.
    """
    file = WeightsFile()
    try:
        for name, array in arrays:
            file.add(name, array, name in bfloat16_names)
        file.seal()
        yield file.path, file.table
    finally:
        file.close()


@contextmanager
def opened(shared: SharedWeights) -> Iterator[Path]:
    """Another process's memory, open in this process; yields its path here, which stays when the other closes it.

    Raises Unreachable if the memory is not there, is another's, could still change, or is about to be replaced.
    """
    handle = _open(shared)
    try:
        found, size = os.readlink(f"/proc/self/fd/{handle}"), os.fstat(handle).st_size
        if not found.startswith(f"/memfd:{shared.name}"):
            raise Unreachable(f"{shared.path} is {found} here: the weights are on another host or in another container")
        if size != shared.num_bytes:
            raise Unreachable(f"{shared.path} holds {size} bytes, and {shared.num_bytes} were published")
        if fcntl.fcntl(handle, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise Unreachable(f"{shared.path} is not sealed: it could still change")
        if not _locked(handle, fcntl.LOCK_SH) or not _is_open(shared):  # closing it gives up the writer's lock as well
            raise Unreachable(f"{shared.path} is being replaced by newer weights")
        yield Path(f"/proc/{os.getpid()}/fd/{handle}")
    finally:
        os.close(handle)


def _open(shared: SharedWeights) -> int:
    try:
        return os.open(shared.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # elsewhere it may be anyone's pipe
    except (FileNotFoundError, NotADirectoryError):
        why = "no process here has it: it is on another host or in another container, or newer weights replaced it"
    except PermissionError:
        why = "this process may not open it: its owner is another user, or may not be traced"
    except OSError as error:
        why = str(error)
    raise Unreachable(f"{shared.path} cannot be opened ({why})")


def _is_open(shared: SharedWeights) -> bool:
    """Whether the writer still has the memory open, and no other file under its path."""
    try:
        return os.readlink(shared.path).startswith(f"/memfd:{shared.name}")
    except OSError:
        return False


def _locked(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def read_arrays(path: str | Path, specs: Iterable[ArraySpec]) -> dict[str, np.ndarray]:
    """The arrays of a file in order, memory-mapped (copy on write).

    Raises RuntimeError with the sizes if the file is shorter than its table requires.
    """
    mapped = np.asarray(np.memmap(path, dtype=np.uint8, mode="c"))  # a plain array, which is pickled without a copy
    arrays = {}
    for spec in specs:
        end = spec.offset + int(np.prod(spec.shape, dtype=np.int64)) * np.dtype(spec.dtype).itemsize
        if end > mapped.size:
            raise RuntimeError(f"weights of {spec.name} end at byte {end}, but {path} holds {mapped.size} bytes")
        arrays[spec.name] = mapped[spec.offset : end].view(spec.dtype).reshape(spec.shape)
    return arrays
