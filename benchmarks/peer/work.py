"""The work of both trainers whose learning is compared, as a file in its folder. Standard library only."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

FILE_NAME = "work.json"
SEED = 20
BETAS, EPSILON, WEIGHT_DECAY, MAX_GRAD_NORM = (0.9, 0.999), 1e-8, 0.0, 1.0
"""AdamW and the bound on the gradient, as both trainers' defaults have them."""


@dataclass(frozen=True)
class Work:
    """GRPO with one turn: every step has `num_prompts` new prompts and one optimizer step on their samples."""

    num_steps: int
    new_tokens: int
    num_prompts: int = 8
    num_samples: int = 8
    prompt_tokens: int = 16
    vocabulary: int = 512
    num_threads: int = 2
    temperature: float = 1.0
    learning_rate: float = 2e-4
    clip_low: float = 0.2
    clip_high: float = 0.28

    @property
    def num_sequences(self) -> int:
        """Number of sequences per step."""
        return self.num_prompts * self.num_samples


def save(work: Work, folder: Path) -> None:
    """Writes the work into the folder."""
    (folder / FILE_NAME).write_text(json.dumps(asdict(work)))


def load(folder: Path) -> Work:
    """Reads the work from the folder."""
    return Work(**json.loads((folder / FILE_NAME).read_text()))
