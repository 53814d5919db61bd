"""The folder in which torch caches compiled code. Imports the standard library only, and platformdirs when no
folder is set.

torch reads this cache with pickle, so that whoever can write to it can run code. Its default is a folder of a
well-known name in the shared temporary folder, which any user of the host can create first.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def own_compile_cache() -> dict[str, str]:
    """The variable that names the folder, for the environment of a process that compiles; empty if the one that is set
    names a folder of this user alone. The folder exists afterwards.

    Raises RuntimeError when the folder in the user's cache belongs to another user or can be written by one.
    """
    named = os.environ.get(VARIABLE)  # torch itself may have set it to its own choice
    if named and _is_own(Path(named)):
        return {}
    from platformdirs import user_cache_path

    folder = user_cache_path("squelch") / "compiled"
    if not _is_own(folder):
        raise RuntimeError(
            f"{folder} belongs to another user or can be written by one, and compiled code in it would be run: remove "
            f"it, or name a folder of your own in {VARIABLE}"
        )
    return {VARIABLE: str(folder)}


def _is_own(folder: Path) -> bool:
    """Whether the folder, which is created if it is missing, belongs to this user and nobody else can write to it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = os.stat(folder)
    return found.st_uid == os.getuid() and not stat.S_IMODE(found.st_mode) & (stat.S_IWGRP | stat.S_IWOTH)
