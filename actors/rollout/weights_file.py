"""The file in memory through which a rollout worker passes weights to its engine's processes. Imports neither Ray,
torch nor vLLM."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

_ALIGNMENT = 64


@dataclass(frozen=True)
class ArraySpec:
    """Position of one parameter in the file: `dtype` is numpy's (bfloat16 as uint16), `offset` is in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    bfloat16: bool

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> ArraySpec:
        """The specification in an entry of the file's table, where the shape is a list."""
        return cls(entry["name"], entry["dtype"], tuple(entry["shape"]), entry["offset"], entry["bfloat16"])


@contextmanager
def written_arrays(
    arrays: Iterable[tuple[str, np.ndarray]], bfloat16_names: frozenset[str]
) -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    """Write arrays, in order, into anonymous memory; yields its path and the table of its arrays.

    The path is one of this process's open files (Linux). Other processes of the same user can map it. It disappears
    when the context exits or this process ends, even if the process is killed.
    """
    with open(os.memfd_create("squelch-weights"), "wb") as file:
        table = _write(file, arrays, bfloat16_names)
        file.flush()
        yield Path(f"/proc/{os.getpid()}/fd/{file.fileno()}"), table


def _write(
    file: BinaryIO, arrays: Iterable[tuple[str, np.ndarray]], bfloat16_names: frozenset[str]
) -> list[dict[str, Any]]:
    table: list[dict[str, Any]] = []
    for name, array in arrays:
        offset = -(-file.tell() // _ALIGNMENT) * _ALIGNMENT
        file.seek(offset)
        file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        spec = ArraySpec(name, array.dtype.str, array.shape, offset, name in bfloat16_names)
        table.append(vars(spec) | {"shape": list(spec.shape)})
    file.truncate(max(file.tell(), 1))  # an empty file cannot be mapped
    return table


def read_arrays(path: str | Path, specs: list[ArraySpec]) -> dict[str, np.ndarray]:
    """The arrays of a file in order, memory-mapped (copy on write).

    Raises RuntimeError with the sizes if the file is shorter than its table requires.
    """
    mapped = np.memmap(path, dtype=np.uint8, mode="c")
    arrays = {}
    for spec in specs:
        end = spec.offset + int(np.prod(spec.shape, dtype=np.int64)) * np.dtype(spec.dtype).itemsize
        if end > mapped.size:
            raise RuntimeError(f"weights of {spec.name} end at byte {end}, but {path} holds {mapped.size} bytes")
        arrays[spec.name] = mapped[spec.offset : end].view(spec.dtype).reshape(spec.shape)
    return arrays
