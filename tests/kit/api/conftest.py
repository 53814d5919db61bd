"""A live model with its tokenizer, and samples in its words."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

NUM_PROMPTS, DRAWS = 7, 3


@pytest.fixture(scope="session")
def tokenizer(tiny_policy: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(tiny_policy)


@pytest.fixture(scope="session")
def model(tiny_policy: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_policy, dtype=torch.float32)


@pytest.fixture(scope="session")
def texts(tokenizer: PreTrainedTokenizerFast) -> tuple[list[str], list[str]]:
    """(prompts, completions), three of each prompt in a row."""
    words = [" " + piece[1:] for piece in sorted(tokenizer.get_vocab()) if piece[0] == "Ġ" and piece[1:].isalpha()]
    rng = np.random.default_rng(0)
    prompts = ["".join(rng.choice(words, 8)) for _ in range(NUM_PROMPTS)]
    said = [
        f"<think>{''.join(rng.choice(words, 5))}</think> <answer>{rng.choice(words)}</answer>"
        for _ in range(NUM_PROMPTS * DRAWS)
    ]
    return [prompt for prompt in prompts for _ in range(DRAWS)], said


@pytest.fixture(scope="session")
def samples(texts: tuple[list[str], list[str]]) -> tuple[list[str], list[str]]:
    """(prompts as fed to the model, completions)."""
    return [f"<|user|>{prompt}<|end|><|assistant|>" for prompt in texts[0]], texts[1]
