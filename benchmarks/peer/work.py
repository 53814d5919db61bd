"""The work of both trainers of the peer benchmark, and the protocol that requests a step.

Two virtual environments import this module, so it uses only the standard library. A worker answers `ready`, then makes
one GRPO step for every line that it reads and answers with one line of JSON; it ends at the end of its input. The
worker waits for the benchmark, and the benchmark waits for the worker with a time-out.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TextIO

FILE_NAME = "work.json"
SEED = 20
BETAS, EPSILON, WEIGHT_DECAY, MAX_GRAD_NORM = (0.9, 0.999), 1e-8, 0.0, 1.0
"""AdamW and the bound on the gradient, as both trainers' defaults have them."""
FIRST_PROMPT_ID = 2
"""Smaller ids are the padding and the end of a text."""


@dataclass(frozen=True)
class Work:
    """GRPO with one turn: every step has `num_prompts` new prompts and one optimizer step on their samples. Squelch's
    learner has `ranks` ranks, which share the threads; `checkpointing` is its activation checkpointing."""

    num_steps: int
    num_prompts: int = 8
    num_samples: int = 16
    prompt_tokens: int = 40
    new_tokens: int = 64
    vocabulary: int = 512
    num_threads: int = 2
    ranks: int = 2
    temperature: float = 1.0
    learning_rate: float = 2e-4
    clip_low: float = 0.2
    clip_high: float = 0.28
    checkpointing: bool = False
    kept: tuple[float, ...] = (1.0,)
    """Shares of the groups that Squelch trains on, by turns of its steps. TRL has no filter and trains on all."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of Squelch's rollout weights and of its training arithmetic."""
    store_mib: int = 200

    @property
    def num_sequences(self) -> int:
        """Number of sequences per step."""
        return self.num_prompts * self.num_samples

    def kept_groups(self, step: int) -> int:
        """Number of groups that Squelch trains on in a step; steps count from 0."""
        return max(1, round(self.kept[step % len(self.kept)] * self.num_prompts))

    def prompts(self, step: int) -> list[list[int]]:
        """Token ids (num_prompts, prompt_tokens) of a step; steps count from 0."""
        rng = random.Random(SEED * 1_000_003 + step)
        return [
            [rng.randrange(FIRST_PROMPT_ID, self.vocabulary) for _ in range(self.prompt_tokens)]
            for _ in range(self.num_prompts)
        ]

    def check(self, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], step: int) -> None:
        """Raises RuntimeError unless these are the step's prompts, each with `num_samples` samples of full length."""
        wanted = [prompt for prompt in self.prompts(step) for _ in range(self.num_samples)]
        if [list(prompt) for prompt in prompts] != wanted:
            raise RuntimeError(f"step {step}: the {len(prompts)} prompts fed are not the {len(wanted)} of the work")
        lengths = sorted({len(completion) for completion in completions})
        if len(completions) != self.num_sequences or lengths != [self.new_tokens]:
            raise RuntimeError(
                f"step {step}: {len(completions)} completions of {lengths} tokens, wanted {self.num_sequences} of "
                f"{self.new_tokens}"
            )


def save(work: Work, folder: Path) -> None:
    """Writes the work into the folder."""
    (folder / FILE_NAME).write_text(json.dumps(asdict(work)))


def load(folder: Path) -> Work:
    """Reads the work from the folder."""
    fields = json.loads((folder / FILE_NAME).read_text())
    return Work(**fields | {"kept": tuple(fields["kept"])})


def reward(completion: Sequence[int]) -> float:
    """Share of even ids, in [0, 1]: cheap, a function of only the tokens, and different among samples."""
    return sum(token % 2 == 0 for token in completion) / len(completion)


class Channel:
    """The worker's end of the protocol. Only this class writes to it: output of libraries goes to standard error."""

    def __init__(self) -> None:
        self._answers: TextIO = os.fdopen(os.dup(sys.stdout.fileno()), "w")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def answer(self, message: dict[str, Any]) -> None:
        """Sends one line of JSON to the benchmark."""
        self._answers.write(json.dumps(message) + "\n")
        self._answers.flush()

    def next_step(self) -> bool:
        """Waits for the request of a step; False at the end of the input."""
        return bool(sys.stdin.readline())
