"""Inputs of the scorer's benchmark, the method's published form of scoring, and the operations that both forms need.

The plain form is that of the paper's authors: one full sequence for each pair, batches padded to their longest
sequence, logits at every position. Operations are those of matrix products (two per weight and token) and of attention
over the pairs that a causal mask leaves; padding, of which both forms have little here, is not counted.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedModel, Qwen2ForCausalLM

from benchmarks.common import small_qwen2

Rows = list[np.ndarray]
Pairs = Sequence[Sequence[int]]
"""(reasoning, prompt)."""

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


@torch.inference_mode()
def padded(model: PreTrainedModel, prompts: Rows, reasonings: Rows, pairs: Pairs, budget: int) -> np.ndarray:
    """(num_pairs,) log p(Z | X), nats, by full forward passes of at most `budget` tokens (or one sequence) each."""
    rows = [np.concatenate([prompts[j], reasonings[s]]) for s, j in pairs]
    size = max(1, budget // max(map(len, rows)))
    found: list[float] = []
    for start in range(0, len(rows), size):
        batch = [torch.from_numpy(row) for row in rows[start : start + size]]
        ids = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True).to(model.device)
        lengths = torch.tensor([len(row) for row in batch], device=ids.device)
        mask = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
        logits = model(input_ids=ids, attention_mask=mask.long(), use_cache=False).logits[:, :-1]
        each = logits.float().log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)
        for row, (s, j) in zip(each, pairs[start : start + size], strict=True):
            first = len(prompts[j]) - 1
            found.append(float(row[first : first + len(reasonings[s])].sum()))
    return np.array(found)


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

    def plain(self, prompt: int, reasoning: int) -> float:
        """Operations of a pair by a full forward pass."""
        tokens = prompt + reasoning
        return tokens * (self.linear + self.head) + self.attention * tokens * (tokens + 1) / 2

    def engine(self, prompt: int, reasoning: int, reasonings: int) -> float:
        """Operations of a pair if the prompt, and the logits of first tokens, are computed once for `reasonings`
        reasonings; the last token of a reasoning is not fed."""
        tokens = reasoning - 1
        read = self.head + prompt * self.linear + self.attention * prompt * (prompt + 1) / 2
        seen = self.attention * (tokens * prompt + tokens * (tokens + 1) / 2)
        return read / reasonings + tokens * (self.linear + self.head) + seen
