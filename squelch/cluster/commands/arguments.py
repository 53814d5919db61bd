"""Arguments about recipes and runs that several commands share. Loads no heavy package."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from squelch.kit.base.errors import UserError, bad_files_are_the_users, did_you_mean
from squelch.kit.untrusted.files import is_file

if TYPE_CHECKING:
    from squelch.kit.archive.store import Store

RUNS = Path("runs")
"""The folder of runs unless `runs_dir` is set; a run in it may be given by its name."""


def named(place: str) -> str:
    """The folder of the run of this name in `RUNS`; the place itself if it exists, is a URL, or no run has the name."""
    if in_store(place) or os.path.isabs(place) or os.path.lexists(place):
        return place
    found = os.path.normpath(RUNS / place)
    return found if os.path.isdir(found) else place


def run_path(place: str) -> Path:
    """As `named`, for a command that reads folders alone."""
    return Path(named(place))


def run_folder(path: Path) -> Path:
    """Returns the folder if it holds a run; UserError otherwise."""
    with bad_files_are_the_users():
        found = is_file(path / "config.yaml")
    if not found:
        meant = did_you_mean(path.name, [entry.name for entry in RUNS.iterdir()] if RUNS.is_dir() else [])
        raise UserError(
            f"{path} holds no run: it has no config.yaml. {meant}`squelch status` lists the runs in {RUNS}; give a "
            "name or a folder"
        )
    return path


def in_store(place: str) -> bool:
    """Whether a run's place is a URL, and no folder."""
    return "://" in place


def place_of(place: str) -> Path | Store:
    """The folder of a run, or the run in a store as it grows. UserError if there is no run."""
    if not in_store(place):
        return run_folder(Path(place))
    from squelch.cluster.runs.in_store.manifest import find_run
    from squelch.cluster.runs.in_store.reading import Followed

    return Followed(find_run(place))


def described_place(place: str) -> Path | Store:
    """As `place_of`, of a run that is starting, or whose `config.yaml` can be read. UserError that names a damaged
    one."""
    from squelch.cluster.runs.folder import RunFolder

    if not in_store(place) and RunFolder(place).stage() is not None:
        return Path(place)  # its config.yaml may not be written yet
    found = place_of(place)
    RunFolder(found).settings()
    return found
