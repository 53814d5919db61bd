"""Zip archives byte by byte, so that their headers may lie."""

import struct
import zlib
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

STORED, DEFLATED, ZSTANDARD = 0, 8, 93


class Member(NamedTuple):
    """A member as it stands in an archive. `packed`: its bytes there; `crc`: of its content."""

    name: str
    packed: bytes
    size: int
    crc: int
    method: int = STORED
    flags: int = 0


def member(name: str, content: bytes, method: int = STORED) -> Member:
    """A member; with Zstandard its content is in two frames, as that of writers that bound a frame."""
    if method == DEFLATED:
        packing = zlib.compressobj(9, zlib.DEFLATED, -15)
        packed = packing.compress(content) + packing.flush()
    elif method == ZSTANDARD:
        half = len(content) // 2
        packed = b"".join(
            pa.compress(part, codec="zstd", asbytes=True) for part in (content[:half], content[half:]) if part
        )
    else:
        packed = content
    return Member(name, packed, len(content), zlib.crc32(content), method)


def archive(path: Path, members: list[Member], directory_bytes: int | None = None) -> Path:
    """The path of an archive of the members. `directory_bytes`: how large its end says that its directory is."""
    body, directory = b"", b""
    for one in members:
        name = one.name.encode()
        sizes = len(one.packed), one.size, len(name)
        facts = struct.pack("<HHHHIIIHH", one.flags, one.method, 0, 33, one.crc, *sizes, 0)
        directory += b"PK\1\2" + struct.pack("<HH", 63, 63) + facts
        directory += struct.pack("<HHHII", 0, 0, 0, 0, len(body)) + name
        body += b"PK\3\4" + struct.pack("<H", 63) + facts + name + one.packed
    said = len(directory) if directory_bytes is None else directory_bytes
    end = b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, len(members), len(members), said, len(body), 0)
    path.write_bytes(body + directory + end)
    return path
