"""What a run that starts is doing: the file `.starting.json` in its folder, from the first long stage of the start-up
until the first step is recorded. Pure.

A killed process leaves the file behind; readers test the lock of the folder besides (`cluster.runs.driver`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from squelch.cluster.runs.shapes import LARGEST
from squelch.kit.base.disk import write_whole
from squelch.kit.process.terminal import duration
from squelch.kit.untrusted.files import is_file

FILE = ".starting.json"
KNOWN_SHARE = 0.05
"""Share from which the time that is left is estimated by the time that has passed."""


@dataclass(frozen=True)
class Stage:
    """One stage of the start. `since`: unix seconds of its beginning; `usual`: how long it takes as a rule, in words;
    `detail`: what happens in it at this moment; `share`: how much of it is done, in [0, 1] or None."""

    name: str
    since: Annotated[float, Field(ge=0, le=LARGEST)]
    usual: str = ""
    detail: str = ""
    share: Annotated[float, Field(ge=0, le=1)] | None = None

    @property
    def words(self) -> str:
        """What happens now."""
        return f"{self.name}: {self.detail}" if self.detail else self.name

    def times(self, now: float) -> str:
        """How long it has taken, and how long it will take as far as that is known."""
        passed = max(0.0, now - self.since)
        if self.share is not None and self.share >= KNOWN_SHARE:
            left = passed * (1 - min(self.share, 1.0)) / self.share
            return f"{self.share:.0%}, {duration(passed)} so far, about {duration(left)} left"
        return f"{duration(passed)} so far" + (f", usually {self.usual}" if self.usual else "")


def write_stage(folder: Path, stage: Stage) -> None:
    """Writes the stage into the run's folder."""
    write_whole(folder / FILE, json.dumps(asdict(stage)) + "\n")


def remove_stage(folder: Path) -> None:
    """Removes the stage: the run has started, or failed to."""
    (folder / FILE).unlink(missing_ok=True)


def has_stage(folder: Path) -> bool:
    """Whether the folder holds a stage, and so a run before its `config.yaml` is written."""
    return is_file(folder / FILE)


def stage_of(found: Mapping[str, Any]) -> Stage | None:
    """The stage in the content of the file; None if it has another shape, as of another release."""
    try:
        return TypeAdapter(Stage).validate_python(found)
    except ValidationError:
        return None
