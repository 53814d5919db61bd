"""The last part of a checkpoint's writing: its bytes go to the disk, and the folder gets its name.

The files hold the weights by then, in the kernel's memory if not on the disk yet, so the ranks may change theirs. Where
the ranks are on the driver's node, the driver seals, and the ranks go on training. Imports neither torch nor Ray.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from squelch.kit.base.disk import partial_path, put_in_place


def seal(path: Path) -> None:
    """Gives the complete folder at `partial_path(path)` its name, durably. Raises ValueError, and keeps nothing of it,
    if the disk refuses."""
    try:
        put_in_place(partial_path(path), path)
    except OSError as error:
        raise ValueError(not_written(path, error)) from error
    finally:
        shutil.rmtree(partial_path(path), ignore_errors=True)


def not_written(path: Path, error: BaseException) -> str:
    """The message for a checkpoint that could not be written."""
    free = shutil.disk_usage(next(folder for folder in path.parents if folder.exists())).free / 2**20
    return (
        f"checkpoint {path} could not be written, and nothing of it was kept ({error}). {free:,.0f} MiB "
        "are free there; free some space"
    )
