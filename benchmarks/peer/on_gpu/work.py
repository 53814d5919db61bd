"""The work of both trainers on one GPU. Standard library only: TRL's process reads it too (`benchmarks.peer.work`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

BARRIER = "SQUELCH_PEER_BARRIER"
"""Environment variable with the path of the file for which a side waits once it has generated its first step."""
SEED = 45
MEASURED = "Qwen2.5-0.5B"
"""The shape at which it is known how much memory each side takes; at others one side is loaded at a time."""
WHOLE_GPU = 1e6
"""GiB."""


@dataclass(frozen=True)
class GpuWork:
    """GRPO with one turn and one optimizer step: `prompts` of about `prompt_tokens` tokens x `samples` x `new_tokens`.

    `ragged`: half of the samples end before `new_tokens`, at a token that is drawn like any other; else all have full
    length, which is the best case for padded rows. `steps`: of each variant, the first of which is not counted.
    """

    shape: str
    device: str
    steps: int
    prompts: int = 32
    samples: int = 8
    prompt_tokens: int = 219
    new_tokens: int = 256
    ragged: bool = False
    quick: bool = False

    @property
    def sequences(self) -> int:
        """Number of sequences of a step."""
        return self.prompts * self.samples

    @property
    def context(self) -> int:
        """Tokens for a prompt with its template and an answer, rounded up."""
        return -(-(self.prompt_tokens + self.new_tokens + 24) // 128) * 128

    def facts(self) -> dict[str, Any]:
        """What a result states of the work."""
        names = ("shape", "device", "prompts", "samples", "prompt_tokens", "new_tokens", "ragged", "steps")
        return {name: vars(self)[name] for name in names}


def ends(vocabulary: int, new_tokens: int, ragged: bool) -> list[int]:
    """Ids that end an answer, if every id is as likely: with `ragged` so many that half of the answers end before they
    have `new_tokens` tokens. The first is the chat template's."""
    count = round(vocabulary * (1 - 0.5 ** (1 / new_tokens))) if ragged else 1
    return [2, *range(vocabulary - max(count, 1) + 1, vocabulary)]
