"""Reads arrays from .npz files that may be hostile: zip archives of numpy arrays, without pickled objects.

The members that are asked for are read one at a time. A member's shape, as its header states it, is checked before its
bytes are inflated.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from squelch.kit.untrusted.files import MIB, Unreadable, decoding, open_file, shortened, size_text

if TYPE_CHECKING:
    import numpy as np

MOST_BYTES = 512 * MIB
"""Bytes of the wanted arrays together, as float64."""
_ENCRYPTED = 0x1
_INFLATABLE = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""The methods that numpy writes; zipfile inflates those of the others without a bound."""
_HEAD = 64 * 1024
"""Bytes that hold the header of any array."""
_REMEDY = "write it again with np.savez"
_ARRAY_MAGIC = b"\x93NUMPY"


def read_npz(path: Path, needed: Sequence[str], optional: Iterable[str]) -> dict[str, np.ndarray]:
    """The named arrays of an .npz file.

    Raises Unreadable, which names the file and the array, if the file is no archive, lacks a needed array, or if a
    wanted array is damaged, encrypted, too large, or holds Python objects.
    """
    with open_file(path) as file:
        if file.read(len(_ARRAY_MAGIC)) == _ARRAY_MAGIC:
            raise Unreadable(f"{path} is a single array; save it with np.savez(..., {needed[0]}=...)")
        with decoding(str(path), "is no .npz file", _REMEDY):
            archive = zipfile.ZipFile(file)
        with archive:
            members = {name.removesuffix(".npy"): name for name in archive.namelist()}
            missing = [name for name in needed if name not in members]
            if missing:
                raise Unreadable(f"{path} lacks {_keys(missing)}; it holds {_keys(members)}, and needs {_keys(needed)}")
            wanted = [name for name in (*needed, *optional) if name in members]
            return _read_members(path, archive, {name: archive.getinfo(members[name]) for name in wanted})


def _read_members(path: Path, archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo]) -> dict[str, np.ndarray]:
    left, arrays = MOST_BYTES, dict[str, "np.ndarray"]()
    for name, member in members.items():
        where = f"{path}: `{name}`"
        if member.flag_bits & _ENCRYPTED:
            raise Unreadable(f"{where} is encrypted; {_REMEDY}")
        if member.compress_type not in _INFLATABLE:
            raise Unreadable(f"{where} is compressed by another method than deflate; {_REMEDY}")
        with decoding(where, "is damaged or holds Python objects", _REMEDY), archive.open(member) as file:
            arrays[name], used = _read_array(file, left, where)
        left -= used
    return arrays


def _read_array(file: IO[bytes], most_bytes: int, where: str) -> tuple[np.ndarray, int]:
    """The array, and the bytes that it needs as float64."""
    import numpy as np

    head = io.BytesIO(file.read(_HEAD))
    shape, fortran_order, dtype = _header(head)
    if dtype.hasobject:
        raise Unreadable(f"{where} holds Python objects; {_REMEDY}")
    count = math.prod(shape)
    used = count * max(8, dtype.itemsize)
    if used > most_bytes or any(side < 0 for side in shape):
        raise Unreadable(f"{where} has the shape {shortened(str(shape), 60)}; at most {size_text(MOST_BYTES)} are read")
    size = count * dtype.itemsize
    data = head.read(size)
    data += file.read(size - len(data))
    array = np.frombuffer(data, dtype, count) if count else np.empty(0, dtype)
    return array.reshape(shape, order="F" if fortran_order else "C"), used


def _header(head: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, order and type that an array's first bytes state. Raises ValueError for an unknown version of the
    format."""
    from numpy.lib import format as numpy_format

    version = numpy_format.read_magic(head)
    if version == (1, 0):
        return numpy_format.read_array_header_1_0(head)
    if version == (2, 0):
        return numpy_format.read_array_header_2_0(head)
    raise ValueError(f"version {version} of numpy's format")


def _keys(names: Iterable[str]) -> str:
    return shortened(", ".join(f"`{name}`" for name in names) or "nothing", 300)
