"""Settings of the supervised warm-up of a pretrained model. Imports no torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from squelch.envs.wording import DemonstrationQuality
from squelch.kit.base.settings import Settings
from squelch.kit.base.user_files import NAMES_FILES


class WarmupQuality(DemonstrationQuality):
    """Quality of the demonstrations for a pretrained model, each rate a probability per turn: nearly all of them read
    the state, and a third plan at random, so that RL has something to learn."""

    # The defaults of a class, not values of a field's default: whoever sets one of them keeps the others.
    grounded: float = Field(0.95, ge=0, le=1)
    """The reasoning names the state's coordinates; otherwise it is generic."""
    wrong_coordinates: float = Field(0.02, ge=0, le=1)
    """One of the coordinates of a grounded reasoning is replaced by a random cell; the plan is left as it is."""
    random_plan: float = Field(0.3, ge=0, le=1)
    """Random actions replace the solver's in a grounded turn."""
    generic_random_plan: float = Field(0.5, ge=0, le=1)
    """Random actions replace the solver's in a generic turn."""


class WarmupConfig(Settings):
    """A supervised warm-up before RL, on demonstrations of the environment or on a file of chat messages."""

    data: Annotated[str, NAMES_FILES] = ""
    """JSONL or Parquet file of chat messages (`learner.warmup.chat_files`); empty: the environment demonstrates."""
    demonstrations: int = Field(320, ge=1)
    """Demonstrations that the environment gives, each of another training task; a file's conversations are all used."""
    epochs: int = Field(1, ge=1)
    """Passes over the demonstrations, each in another order."""
    batch: int = Field(16, ge=1)
    """Demonstrations of one optimizer step."""
    held_out: int = Field(32, ge=1)
    """Demonstrations that are never trained on, for the held-out loss: of validation tasks, or drawn from the file."""
    learning_rate: float = Field(1e-4, gt=0)
    """AdamW's peak; it rises linearly over the first twentieth of the steps, and then falls along half a cosine to a
    tenth. Betas, weight decay and clipping are `learner.optimizer`'s."""
    format_validity: float | None = Field(None, gt=0, le=1)
    """Share of well-formed turns at which the warm-up stops, so that something is left to learn; unset: all
    demonstrations are used."""
    true_reasonings: float | None = Field(None, gt=0, le=1)
    """Share of reasonings that state something of their task, all of it true, at which the warm-up stops; with
    `format_validity`, once both are there. Needs an environment with a judge."""
    check_every: int = Field(5, ge=1)
    """Optimizer steps between two checks; a check measures the held-out loss and, if the environment is known, plays.
    Without a share to stop at only the start and the end are checked."""
    tasks: int = Field(16, ge=1)
    """Validation tasks that a check plays, the same each time."""
    samples: int = Field(4, ge=1)
    """Trajectories of each of these tasks, at `sampling.temperature`; they show the share of groups with variance."""
    save_every: int = Field(5, ge=1)
    """Optimizer steps between two checkpoints, from which an interrupted warm-up continues."""
    seed: int = Field(0, ge=0)
    """Seed of the demonstrations and of their order."""
    quality: WarmupQuality = WarmupQuality()
    """Quality of the demonstrations."""

    @property
    def may_stop_early(self) -> bool:
        """Whether there is a share at which it stops."""
        return self.format_validity is not None or self.true_reasonings is not None
