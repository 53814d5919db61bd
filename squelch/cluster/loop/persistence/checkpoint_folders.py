"""The folders of a run's checkpoints: `RUN/checkpoints/step-N`, N the last step that is complete.

A checkpoint has its name once it is complete (`learner.checkpoint.folder` describes its content); which ones stay is
decided here (`prune`).
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

from squelch.cluster.runs.folder import RunFolder
from squelch.kit.base.disk import partial_path, restore_names


def checkpoint_dir(run_dir: Path, step: int) -> Path:
    """The folder of the checkpoint of a step."""
    return run_dir / "checkpoints" / f"step-{step}"


def checkpoints(run_dir: Path) -> list[tuple[int, Path]]:
    """(step, folder) of a run's complete checkpoints, oldest first. A partly written checkpoint has no final name and
    is left out."""
    return [(step, run_dir / key) for step, key in RunFolder(run_dir).checkpoints().items()]


def newest_until(saved: Sequence[tuple[int, Path]], step: int | None) -> int | None:
    """Step of the newest of the `saved` checkpoints that is not after `step`; None if there is none."""
    return max((at for at, _ in saved if step is not None and at <= step), default=None)


def restore(run_dir: Path) -> None:
    """Gives a checkpoint its name back that a killed process was about to replace. Only for the run's driver."""
    restore_names(run_dir / "checkpoints")


def prune(run_dir: Path, keep: int, needed: Collection[int | None], healthy: Collection[int | None] = ()) -> None:
    """Deletes all checkpoints except the `keep` newest, those of the steps `needed`, and for each step of `healthy` the
    newest that is not after it; and partly written ones of a killed process. A checkpoint loses its name first, so that
    no reader takes a half deleted one for complete."""
    restore(run_dir)
    saved = checkpoints(run_dir)
    spared = {*needed, *(newest_until(saved, step) for step in healthy)}
    for step, folder in saved[:-keep]:
        if step not in spared:
            folder.rename(partial_path(folder))
    for half in (run_dir / "checkpoints").glob(".*step-*.partial"):  # two dots: still being gathered
        shutil.rmtree(half)
