"""What the scorer's benchmark scores, how the method's published code scores it, and what either must compute at least.

The plain form is that of the paper's authors: one full sequence for each pair, batches padded to their longest, logits
at every position. Operations are those of the matrix products (two a weight and token) and of attention over the pairs
that a causal mask leaves; padding, of which both forms have little here, is left out.
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
    """One of POLICIES, its own vocabulary replaced where one is given; scaled so that the prompt matters."""
    shape = POLICIES[name] | ({"vocabulary": vocabulary} if vocabulary else {})
    return small_qwen2(**shape, layers=4, heads=4, max_position_embeddings=2048, initializer_range=0.06)


def random_policy(config: PreTrainedConfig) -> PreTrainedModel:
    """Random weights, the same for the same shape."""
    torch.manual_seed(0)
    return Qwen2ForCausalLM(copy.deepcopy(config)).eval()  # the engine changes its model's


def random_rows(count: int, tokens: int, vocabulary: int, seed: int) -> Rows:
    """`count` rows of `tokens` ids with nothing in common: the engine has no opening to share, its worst case."""
    rng = np.random.default_rng((seed, count, tokens))
    return list(rng.integers(0, vocabulary, (count, tokens)))


@torch.inference_mode()
def padded(model: PreTrainedModel, prompts: Rows, reasonings: Rows, pairs: Pairs, budget: int) -> np.ndarray:
    """(num_pairs,) log p(Z | X), by full forwards of at most `budget` tokens (or one sequence) at a time."""
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
    """Of one model: a token through its linear layers, a position through its head, a query against a key."""

    linear: float
    head: float
    attention: float

    @classmethod
    def of(cls, model: PreTrainedModel) -> Operations:
        config: Any = model.config
        linears = [m for m in model.base_model.modules() if isinstance(m, torch.nn.Linear)]
        return cls(
            2.0 * sum(m.weight.numel() for m in linears),
            2.0 * config.vocab_size * config.hidden_size,
            4.0 * config.hidden_size * config.num_hidden_layers,
        )

    def plain(self, prompt: int, reasoning: int) -> float:
        """A pair by a full forward."""
        tokens = prompt + reasoning
        return tokens * (self.linear + self.head) + self.attention * tokens * (tokens + 1) / 2

    def engine(self, prompt: int, reasoning: int, reasonings: int) -> float:
        """A pair where a prompt is read once for `reasonings` of them, and with it the logits of their first tokens; a
        reasoning's last token is not fed."""
        tokens = reasoning - 1
        read = self.head + prompt * self.linear + self.attention * prompt * (prompt + 1) / 2
        seen = self.attention * (tokens * prompt + tokens * (tokens + 1) / 2)
        return read / reasonings + tokens * (self.linear + self.head) + seen
