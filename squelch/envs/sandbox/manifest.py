"""What an image consists of, and whether it still does.

Programs that clean temporary folders remove old files, also from an image that is in use; without a module of the
standard library, right programs fail. So an image is compared with its manifest before its first use, and again
whenever the change time of one of its folders differs: a file cannot be removed, added or renamed without that.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

FILE = "manifest.json"

Entry = tuple[int, int, int, str]
"""Mode, bytes, modification time in ns, digest of the content; zeros and an empty digest for a folder."""


def write(place: Path) -> None:
    """Records the image in `place`."""
    entries = {name: _entry(path, _digest(path)) for name, path in _paths(place)}
    (place / FILE).write_text(json.dumps(entries))


def damage(place: Path, contents: bool = False) -> list[str]:
    """What differs from the manifest, in words; empty for a whole image. Without `contents` a file counts as unchanged
    if its size and its modification time are (a few milliseconds instead of a tenth of a second)."""
    try:
        expected = json.loads((place / FILE).read_text())
        found = dict(_paths(place))
        missing = [f"{name} is missing" for name in expected if name not in found]
        added = [f"{name} was added" for name in found if name not in expected]
        changed = [
            f"{name} has changed" for name, entry in expected.items() if _differs(found.get(name), entry, contents)
        ]
    except (OSError, ValueError) as error:
        return [f"it cannot be read: {error}"]
    return missing + added + changed


def few(damage: Sequence[str]) -> str:
    """The first three of what differs, and how many more there are."""
    return "; ".join(damage[:3]) + (f"; {len(damage) - 3} more" if len(damage) > 3 else "")


def folders(place: Path) -> list[str]:
    """The image's folders."""
    return [folder for folder, _, _ in os.walk(place)]


def signature(folders: list[str]) -> tuple[tuple[int, int], ...]:
    """(inode, change time) of each folder; takes a tenth of a millisecond. Empty if a folder is missing."""
    try:
        return tuple((found.st_ino, found.st_ctime_ns) for found in map(os.stat, folders))
    except OSError:
        return ()


def _paths(place: Path) -> Iterator[tuple[str, Path]]:
    """Name and path of every file and folder below `place`, without the manifest."""
    for folder, folders, files in os.walk(place):
        for name in (*folders, *files):
            path = Path(folder, name)
            if path != place / FILE:
                yield str(path.relative_to(place)), path


def _entry(path: Path, digest: str) -> Entry:
    found = path.lstat()
    if stat.S_ISDIR(found.st_mode):
        return found.st_mode, 0, 0, ""
    return found.st_mode, found.st_size, found.st_mtime_ns, digest


def _differs(path: Path | None, expected: list[int | str], contents: bool) -> bool:
    if path is None:
        return False
    digest = _digest(path) if contents else str(expected[3])
    return list(_entry(path, digest)) != expected


def _digest(path: Path) -> str:
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
