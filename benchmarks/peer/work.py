"""The work of both trainers whose learning is compared, as a file in its folder, and what all comparisons of trainers
share. Standard library only."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

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


def save(work: Any, folder: Path) -> None:
    """Writes a work, a dataclass, into the folder."""
    (folder / FILE_NAME).write_text(json.dumps(asdict(work)))


def load(kind: type[T], folder: Path) -> T:
    """Reads the work from the folder."""
    return kind(**json.loads((folder / FILE_NAME).read_text()))


def write_letters(folder: Path, counts: Mapping[str, int], letters: int, seed: int) -> None:
    """Writes a file of prompts of so many random letters for each split, with the number of each."""
    rng = random.Random(seed)
    folder.mkdir()
    for split, count in counts.items():
        texts = ["".join(rng.choices(string.ascii_lowercase, k=letters)) for _ in range(count)]
        rows = [{"prompt": [{"role": "user", "content": text}]} for text in texts]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def run_settings(folder: Path, name: str, steps: int, prompts: int, samples: int, new_tokens: int) -> dict[str, Any]:
    """Settings of Squelch's run in every comparison: the work without a filter, and nothing that only measures."""
    return {
        "name": name,
        "model.path": str(folder / "model"),
        "loop.steps": steps,
        "loop.prompts": prompts,
        "sampling.group_size": samples,
        "sampling.max_tokens_per_turn": new_tokens,
        "filter.rule": "none",
        "learner.minibatches": 1,
        "learner.activation_checkpointing": False,
        "scorer.enabled": False,
        "validation.every": 0,
        "recorder.port": 0,
        "recorder.report": False,
    }
