"""Headers of safetensors files that may be hostile: which tensors a file holds, without reading one of them.

The safetensors library checks a header against its file: tensors neither overlap nor leave gaps, each has the bytes
that its type and shape need, and the last ends where the file ends. A header is parsed in memory and may claim any
length, so it is bounded here first.

Imports neither Ray, torch, vLLM nor transformers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open

from squelch.kit.untrusted.files import MIB, Unreadable, decoding, open_file, size_text

MAX_HEADER = 16 * MIB
"""Bytes of one header. A model with a hundred thousand tensors needs about 12 MiB."""
_LENGTH_BYTES = 8


@dataclass(frozen=True)
class TensorHeader:
    """Type (the code of safetensors, e.g. `BF16`) and shape of one tensor."""

    dtype: str
    shape: tuple[int, ...]


def read_header(path: Path) -> dict[str, TensorHeader]:
    """The tensors of a safetensors file by name. Raises Unreadable, naming the file, if it is none."""
    head(path)
    with decoding(str(path), "is not a whole safetensors file", "copy it again from where it came"):
        return _library_header(path)


def head(path: Path) -> bytes:
    """The first bytes of a safetensors file: its header and that one's length. Raises Unreadable, naming the file, if
    it claims a longer one than a safetensors file has."""
    with open_file(path) as file:
        first = file.read(_LENGTH_BYTES)
        length = int.from_bytes(first, "little")
        if length > MAX_HEADER:
            raise Unreadable(
                f"{path} claims a header of {length} bytes; a safetensors file has at most {size_text(MAX_HEADER)}"
            )
        return first + file.read(length)


def _library_header(path: Path) -> dict[str, TensorHeader]:
    with safe_open(path, framework="numpy") as tensors:
        names = tensors.keys()
        slices = {name: tensors.get_slice(name) for name in names}
        return {name: TensorHeader(one.get_dtype(), tuple(one.get_shape())) for name, one in slices.items()}
