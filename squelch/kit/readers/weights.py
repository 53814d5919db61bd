"""Which checkpoint sampled the rows of a training step, by the rule of each trainer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from squelch.kit.untrusted.files import is_folder


@dataclass(frozen=True)
class WeightsRule:
    """A trainer samples the rows of step N before it updates the weights, and numbers its checkpoints after updates."""

    folder: str
    """Name of a checkpoint's folder, with `{}`, or a format such as `{:07d}`, for its number."""
    offset: int
    """The rows of step N were sampled by the checkpoint N + offset."""
    first: int = 1
    """Number of the first checkpoint; a lower number is the initial model."""

    def sampled_by(self, step: int) -> int:
        """Number of the checkpoint that sampled the rows of a step; below `first` for the initial model."""
        return step + self.offset

    def name(self, number: int) -> str:
        """The checkpoint of a number, in words."""
        return "the initial model" if number < self.first else self.folder.format(number)

    def number_in(self, path: Path) -> int | None:
        """The checkpoint's number that a path names, e.g. 99 for `out/checkpoint-99`; None if it names none."""
        before, _, after = re.escape(re.sub(r"\{.*?\}", "\0", self.folder)).partition(re.escape("\0"))
        found = [re.search(rf"{before}(\d{{1,18}}){after}$", part) for part in path.parts]
        numbers = [int(match[1]) for match in found if match]
        return numbers[-1] if numbers else None

    def checkpoints(self, folder: Path) -> dict[int, Path]:
        """The checkpoints in a trainer's folder, at any depth, by number."""
        pattern = re.sub(r"\{.*?\}", "*", self.folder)
        found = ((self.number_in(Path(path.name)), path) for path in sorted(folder.glob(f"**/{pattern}"), reverse=True))
        return {number: path for number, path in found if number is not None and is_folder(path)}

    def disagreement(self, step: int, model: Path) -> str | None:
        """What is wrong with scoring the rows of a step with the checkpoint at `model`, if its path shows it."""
        given, wanted = self.number_in(model), self.sampled_by(step)
        if given is None or given == wanted:
            return None
        wrote = f"step {step} was sampled by {self.name(wanted)}"
        return f"{wrote}; you gave {self.name(given)}, which did not write these rows"
