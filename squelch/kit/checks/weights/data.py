"""What the checks of weights know: samples of a run, the checkpoints that may have sampled them, and their scores.

Invariants:

- A draw is seeded and does not depend on the order of the rows; its memory is bounded.
- Arrays of a sample and of its scores have one entry for each sampled token. Log-probabilities are in nats.
- Pure.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

MOST_TOKENS = 100_000
"""Tokens of prompts and completions that are scored under each checkpoint, if the user says nothing else."""
MOST_STEPS = 16
"""Steps whose rows are scored."""
MOST_ROWS = 512
"""Rows of one step that are scored."""
HEAD = 8
"""Tokens of the head of a distribution: among the likeliest, as far as they lie within `HEAD_MASS`."""
HEAD_MASS = 0.7
"""A token belongs to the head if likelier tokens have less than this mass at temperature 1. No usual cut of the tail
(top_p of 0.9 or more, top_k of 8 or more, min_p of 0.1 or less) leaves one of them out."""


@dataclass(frozen=True)
class Candidate:
    """Weights that may have sampled rows.

    Attributes:
        number: as the trainer numbers its checkpoints (`readers.weights.WeightsRule`); any lower number than the first
            checkpoint's for the initial model.
        name: in words, e.g. "checkpoint-20" or "the initial model".
        path: the folder of the model or of the adapter; None of weights that are given as a model.
        adapter: whether it is a LoRA adapter on the base model.
        initial: whether it is the model that training began with, or the base of its adapters.
    """

    number: int
    name: str
    path: Path | None = None
    adapter: bool = False
    initial: bool = False


@dataclass(frozen=True)
class Sample:
    """One completion of the policy, as ids.

    Attributes:
        row: how a reader finds it.
        step: the training step that learned from it; None where the files say none.
        rollout: equal for the turns of one rollout, whose tokens are not independent of each other.
        prompt: ids that were fed before the completion; at least one.
        completion: ids; `sampled`: of them, which the policy sampled, None for all.
        claimed: the oldest and the newest number of checkpoints that the run says may have sampled it, allowed
            staleness included; None if nothing says so.
        recorded: whether `claimed` comes from versions that the engine recorded.
        engine: the log-probabilities that the engine recorded, as long as `completion`, NaN where there is none.
        trainer: those that the trainer computed for the same tokens before its update.
        exact: whether the completion's ids are those that were sampled, and no text encoded again.
        fed: whether the prompt's are those that were fed.
    """

    row: str
    step: int | None
    rollout: Hashable
    prompt: np.ndarray
    completion: np.ndarray
    sampled: np.ndarray | None = None
    claimed: tuple[int, int] | None = None
    recorded: bool = False
    engine: np.ndarray | None = None
    trainer: np.ndarray | None = None
    exact: bool = True
    fed: bool = True

    @cached_property
    def mask(self) -> np.ndarray:
        """(num_ids,) bool: which ids of the completion the policy sampled."""
        return np.ones(len(self.completion), dtype=bool) if self.sampled is None else np.asarray(self.sampled, bool)

    @property
    def num_tokens(self) -> int:
        """Sampled tokens."""
        return int(self.mask.sum())

    @property
    def cost(self) -> int:
        """Tokens that scoring it forwards."""
        return len(self.prompt) + len(self.completion)


@dataclass(frozen=True)
class WeightClaims:
    """What the run says of its sampling; None where it says nothing.

    Attributes:
        temperature: of the sampling.
        cuts_tail: whether top_p, top_k or min_p cut the distributions. False only if all three are known to be off.
        dtype: in which the engine computes: "float32", "bfloat16" or "float16".
        max_staleness: updates by which weights may be late; samples' `claimed` has it already.
    """

    temperature: float | None = None
    cuts_tail: bool | None = None
    dtype: str | None = None
    max_staleness: int | None = None


@dataclass(frozen=True)
class TokenScores:
    """One sample's scores under one candidate.

    Attributes:
        nodes: (num_nodes, num_tokens), log p of each sampled token at `likelihood.NODE_TEMPERATURES`.
        exact: (num_temperatures, num_tokens), the same at those of `Scores.temperatures`.
        head: (num_tokens, HEAD), logits of the head's tokens, the same tokens under every candidate; -inf for those
            that do not belong to it.
        place: (num_tokens,), the sampled token's index in the head; -1 if it is none of them.
        above: (num_tokens,), mass of the tokens that are likelier than the sampled one, at the last of
            `Scores.temperatures`.
    """

    nodes: np.ndarray
    exact: np.ndarray
    above: np.ndarray
    head: np.ndarray
    place: np.ndarray


@dataclass(frozen=True)
class Scores:
    """Samples scored under candidates. `tokens[c][s]`: of candidate c and sample s; `temperatures`: 1, and the claimed
    one if it is another; `left_out`: rows that could not be scored, by reason."""

    samples: Sequence[Sample]
    candidates: Sequence[Candidate]
    temperatures: tuple[float, ...]
    tokens: Sequence[Sequence[TokenScores]]
    left_out: dict[str, int] = field(default_factory=dict)


class Draw:
    """Draws the samples to be scored, whatever the order in which rows come.

    Args:
        saved: numbers of the checkpoints at hand; steps that one of them sampled come first.
        most_tokens: of prompts and completions.
        seed: of the draw.
    """

    def __init__(self, saved: Collection[int] = (), most_tokens: int = MOST_TOKENS, seed: int = 0) -> None:
        self._saved, self._seed = frozenset(saved), seed
        self._budget = max(1, most_tokens // MOST_STEPS)
        self._whole_budget = most_tokens
        self._steps: dict[tuple[int, float, int], _Kept] = {}

    def wants(self, step: int | None, claimed: tuple[int, int] | None, row: str) -> bool:
        """Whether `add` may keep a row, by what is known of it before its ids are read."""
        key = self._key(step, claimed)
        if key in self._steps:
            return self._chance("row", row) < self._steps[key].bound
        return len(self._steps) < MOST_STEPS or key < max(self._steps)

    def add(self, sample: Sample) -> None:
        """Offers a row; the rows of a step all claim the same."""
        key = self._key(sample.step, sample.claimed)
        if not self.wants(sample.step, sample.claimed, sample.row) or not sample.num_tokens or not len(sample.prompt):
            return
        if key not in self._steps:
            self._steps[key] = _Kept(self._whole_budget if sample.step is None else self._budget)
            if len(self._steps) > MOST_STEPS:
                del self._steps[max(self._steps)]
        self._steps[key].add(self._chance("row", sample.row), sample)

    def samples(self) -> list[Sample]:
        """What was drawn, by step and row."""
        found = [sample for kept in self._steps.values() for _, _, sample in kept.heap]
        return sorted(found, key=lambda one: (-1 if one.step is None else one.step, one.row))

    def _key(self, step: int | None, claimed: tuple[int, int] | None) -> tuple[int, float, int]:
        """Smaller for steps that come first."""
        own = claimed is not None and any(claimed[0] <= one <= claimed[1] for one in self._saved)
        number = -1 if step is None else step
        return 0 if own else 1, self._chance("step", number), number

    def _chance(self, kind: str, name: object) -> float:
        digest = hashlib.blake2b(f"{self._seed} {kind} {name}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") / 2**64


class _Kept:
    """The rows of one step with the smallest chances, as far as their tokens fit."""

    def __init__(self, budget: int) -> None:
        self._budget, self._tokens, self._offered = budget, 0, 0
        self.bound = 1.0
        """Whatever has this chance or more did not fit once, and must not fit later."""
        self.heap: list[tuple[float, int, Sample]] = []

    def add(self, chance: float, sample: Sample) -> None:
        if chance >= self.bound:
            return
        self._offered += 1
        heapq.heappush(self.heap, (-chance, self._offered, sample))
        self._tokens += sample.cost
        while len(self.heap) > 1 and (self._tokens > self._budget or len(self.heap) > MOST_ROWS):
            dropped = heapq.heappop(self.heap)
            self.bound, self._tokens = -dropped[0], self._tokens - dropped[2].cost
