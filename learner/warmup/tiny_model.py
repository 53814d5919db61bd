"""The untrained model of the tiny policy and its configuration files; see `learner.warmup.tiny`."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

from squelch.actors.play.codec import ChatCodec
from squelch.learner.warmup.tiny_recipe import TinyRecipe


def new_model(codec: ChatCodec, recipe: TinyRecipe, seed: int) -> Qwen2ForCausalLM:
    """An untrained model of the recipe's shape, float32."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=codec.vocab_size,
        hidden_size=recipe.width,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.kv_heads,
        intermediate_size=recipe.feed_forward,
        max_position_embeddings=recipe.max_position,
        rope_parameters={"rope_type": "default", "rope_theta": recipe.rope_theta},
        tie_word_embeddings=True,
        initializer_range=recipe.initial_std,
        bos_token_id=None,
        eos_token_id=codec.stop_ids[0],
        pad_token_id=codec.pad_id,
        dtype="float32",
    )
    return Qwen2ForCausalLM(config)


def write_configs(model: Qwen2ForCausalLM, directory: Path) -> None:
    """Write the configuration files, so that the codec reads the same folder that will be published."""
    model.config.save_pretrained(directory)
    ends, pad = model.config.eos_token_id, model.config.pad_token_id
    model.generation_config = GenerationConfig(eos_token_id=[ends], pad_token_id=pad, do_sample=True, top_k=0)
    model.generation_config.save_pretrained(directory)
