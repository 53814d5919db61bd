"""A small random language model, whose log-probabilities are far from uniform."""

from __future__ import annotations

import torch
from transformers import Qwen2ForCausalLM

from benchmarks.common import small_qwen2

VOCABULARY = 64


def random_model() -> Qwen2ForCausalLM:
    """The same at each call."""
    torch.manual_seed(0)
    shape = {"vocabulary": VOCABULARY, "width": 32, "layers": 2, "hidden": 48, "heads": 2}
    config = small_qwen2(**shape, max_position_embeddings=64, initializer_range=0.3)
    return Qwen2ForCausalLM(config).eval()
