"""A tiny policy with the checkpoints of a training, and rows that it samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import AutoModelForCausalLM, Qwen2ForCausalLM

from tests.random_model import VOCABULARY, random_model

LENGTH = 56


class Played(NamedTuple):
    """(rows, …): prompts, what was sampled after them, and its log-probabilities as it was drawn."""

    prompts: torch.Tensor
    completions: torch.Tensor
    log_probs: torch.Tensor


def step_of(model: Qwen2ForCausalLM, seed: int, size: float = 0.05) -> None:
    """One training step."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(size * torch.randn_like(parameter))


def save_training(folder: Path, name: str = "checkpoint-{}", first: int = 1, count: int = 3) -> None:
    """A trainer's folder: the initial model in `base`, and a checkpoint after each of three updates."""
    model = random_model()
    model.save_pretrained(folder / "base")
    for number in range(first, first + count):
        step_of(model, number - first)
        model.save_pretrained(folder / name.format(number))


@torch.inference_mode()
def play(
    folder: Path, rows: int, seed: int, temperature: float = 1.0, prompt: Sequence[int] | torch.Tensor | None = None
) -> Played:
    """Rows that the model in the folder samples, after a prompt, after one for each row (rows, n), or after random
    ones."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    generator = torch.Generator().manual_seed(seed)
    prompts = torch.randint(0, VOCABULARY, (rows, 4), generator=generator)
    if prompt is not None:
        prompts = prompt if isinstance(prompt, torch.Tensor) else torch.tensor([list(prompt)] * rows)
    ids = prompts
    values = []
    for _ in range(LENGTH):
        log_probs = (model(ids).logits[:, -1] / temperature).log_softmax(-1)
        drawn = log_probs.exp().multinomial(1, generator=generator)
        ids, values = torch.cat([ids, drawn], 1), [*values, log_probs.gather(1, drawn)]
    return Played(prompts, ids[:, prompts.shape[1] :], torch.cat(values, 1).double())
