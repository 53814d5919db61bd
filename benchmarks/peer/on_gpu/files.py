"""The model, tokenizer and prompts of the work on one GPU, drawn at random: nothing is downloaded.

A model with random weights samples every id about equally often, so lengths and rewards are those of the drawn ids. The
tokenizer has as many tokens as the head: bytes, which the prompts are made of, and made-up words, so that every id
that can be sampled has a text.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.peer import work as peer_work
from benchmarks.peer.learning import write_tokenizer
from benchmarks.peer.on_gpu import work as gpu_work
from benchmarks.peer.on_gpu.work import GpuWork

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

TEMPLATE_TOKENS = 20
"""The chat template adds about as many to a prompt of bytes."""


def prepare(folder: Path, work: GpuWork) -> Path:
    """Writes model, prompts and work into the folder; returns the model's."""
    model = folder / "model"
    model.mkdir(parents=True)
    config = shape_of(work)
    write_tokenizer(model, config.vocab_size, made_up_words())
    write_model(model, config, work)
    write_prompts(folder / "data", work)
    peer_work.save(work, folder)
    return model


def shape_of(work: GpuWork) -> PreTrainedConfig:
    """The configuration of the published shape; for a quick work a tiny one, whose heads vLLM has on CPU too."""
    from squelch.learner.model_shapes import published

    config = published(work.shape)
    if not work.quick:
        return config
    tiny = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2, "vocab_size": 2048}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "layer_types": None}
    shape: dict[str, Any] = config.to_dict() | tiny | heads
    return type(config)(**shape)


def write_model(folder: Path, config: PreTrainedConfig, work: GpuWork) -> None:
    """Writes random weights, drawn on the device in bfloat16 on a GPU, with the ids that end an answer."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    found = gpu_work.ends(config.vocab_size, work.new_tokens, work.ragged)
    config.eos_token_id, config.pad_token_id, config.bos_token_id = found[0], 0, None
    torch.manual_seed(gpu_work.SEED)
    dtype = torch.bfloat16 if work.device == "cuda" else torch.float32
    with torch.device(work.device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.generation_config = GenerationConfig(eos_token_id=found, pad_token_id=0)
    model.save_pretrained(folder)


def made_up_words() -> Iterator[str]:
    """Words of two, three and four letters."""
    for length in (2, 3, 4):
        yield from map("".join, product(string.ascii_lowercase, repeat=length))


def write_prompts(folder: Path, work: GpuWork) -> None:
    """Writes enough prompts of letters for every step of every variant, and as many for validation as a file needs."""
    counts = {"train": work.prompts * (work.steps + 1), "validation": work.prompts}
    peer_work.write_letters(folder, counts, max(1, work.prompt_tokens - TEMPLATE_TOKENS), gpu_work.SEED)
