"""Inputs of the scorer's benchmark on a GPU, and the operations that scoring needs: those of matrix products (two per
weight and token) and of attention over the pairs that a causal mask leaves."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedModel, Qwen2ForCausalLM

from benchmarks.common import small_qwen2

Rows = list[np.ndarray]

POLICIES: dict[str, dict[str, int]] = {
    "0.8 M": {"width": 128, "hidden": 384, "vocabulary": 256},
    "3.3 M": {"width": 256, "hidden": 768, "vocabulary": 512},
}


def small_shape(name: str, vocabulary: int | None = None) -> PreTrainedConfig:
    """The shape of one of POLICIES, with another vocabulary if given; scaled so that the prompt matters."""
    shape = POLICIES[name] | ({"vocabulary": vocabulary} if vocabulary else {})
    return small_qwen2(**shape, layers=4, heads=4, max_position_embeddings=2048, initializer_range=0.06)


def random_policy(config: PreTrainedConfig) -> PreTrainedModel:
    """A model with random weights, which are equal for equal shapes."""
    torch.manual_seed(0)
    return Qwen2ForCausalLM(copy.deepcopy(config)).eval()  # a copy, because the engine changes its model's


def random_rows(count: int, tokens: int, vocabulary: int, seed: int) -> Rows:
    """`count` rows of `tokens` ids without a common beginning, the engine's worst case: it has nothing to share."""
    rng = np.random.default_rng((seed, count, tokens))
    return list(rng.integers(0, vocabulary, (count, tokens)))


@dataclass(frozen=True)
class Operations:
    """Operations of one model for a token in its linear layers, a position in its head, and a query with a key."""

    linear: float
    head: float
    attention: float

    @classmethod
    def of(cls, model: PreTrainedModel) -> Operations:
        """The operations of a model."""
        config: Any = model.config
        linears = [m for m in model.base_model.modules() if isinstance(m, torch.nn.Linear)]
        return cls(
            2.0 * sum(m.weight.numel() for m in linears),
            2.0 * config.vocab_size * config.hidden_size,
            4.0 * config.hidden_size * config.num_hidden_layers,
        )

    def engine(self, prompt: int, reasoning: int, reasonings: int) -> float:
        """Operations of a pair if the prompt, and the logits of first tokens, are computed once for `reasonings`
        reasonings; the last token of a reasoning is not fed."""
        tokens = reasoning - 1
        read = self.head + prompt * self.linear + self.attention * prompt * (prompt + 1) / 2
        seen = self.attention * (tokens * prompt + tokens * (tokens + 1) / 2)
        return read / reasonings + tokens * (self.linear + self.head) + seen
