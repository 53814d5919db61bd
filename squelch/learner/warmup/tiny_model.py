"""The untrained model of the tiny policy and its configuration files; see `learner.warmup.tiny`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    PreTrainedModel,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from squelch.actors.play.codec import ChatCodec
from squelch.kit.models.model_folder import has_tower
from squelch.kit.pictures.geometry import PREPROCESSOR
from squelch.learner.warmup.tiny_recipe import TinyRecipe, TinyTower
from squelch.learner.warmup.tiny_tokenizer import VISION_TOKENS, control_tokens

_MOST_SIDE = 64
"""Tokens a side of the largest picture."""


def new_model(codec: ChatCodec, recipe: TinyRecipe, seed: int) -> PreTrainedModel:
    """An untrained model of the recipe's shape, float32: Qwen2, or Qwen2.5-VL with a tower. Its configuration names the
    architecture, as that of a loaded model does."""
    model = _untrained(codec, recipe, seed)
    model.config.architectures = [type(model).__name__]
    return model


def _untrained(codec: ChatCodec, recipe: TinyRecipe, seed: int) -> PreTrainedModel:
    torch.manual_seed(seed)
    ends = {"bos_token_id": None, "eos_token_id": codec.stop_ids[0], "pad_token_id": codec.pad_id}
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": recipe.rope_theta}
    shape: dict[str, Any] = {
        "vocab_size": codec.vocab_size,
        "hidden_size": recipe.width,
        "num_hidden_layers": recipe.layers,
        "num_attention_heads": recipe.heads,
        "num_key_value_heads": recipe.kv_heads,
        "intermediate_size": recipe.feed_forward,
        "max_position_embeddings": recipe.max_position,
        "initializer_range": recipe.initial_std,
        "dtype": "float32",
        **ends,
    }
    if recipe.tower is None:
        return Qwen2ForCausalLM(Qwen2Config(**shape, rope_parameters=rope, tie_word_embeddings=True))
    tower = recipe.tower
    rope |= {"rope_theta": tower.rope_theta, "mrope_section": list(tower.rope_sections)}
    ids = {key: control_tokens(True).index(token) for key, token in VISION_TOKENS.items()}
    settings: dict[str, Any] = {
        "text_config": {**shape, "rope_parameters": rope, "use_sliding_window": False},
        "vision_config": _vision_config(recipe, tower),
        "tie_word_embeddings": True,
        "dtype": "float32",
        **ids,
    }
    return Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(**settings))


def _vision_config(recipe: TinyRecipe, tower: TinyTower) -> dict[str, object]:
    """Every layer attends to the whole picture, which is one window of the original's."""
    return {
        "depth": tower.layers,
        "hidden_size": tower.width,
        "intermediate_size": 2 * tower.width,
        "num_heads": tower.heads,
        "patch_size": tower.patch,
        "spatial_merge_size": tower.merge,
        "temporal_patch_size": 2,
        "window_size": 4 * tower.patch * tower.merge,
        "fullatt_block_indexes": list(range(tower.layers)),
        "out_hidden_size": recipe.width,
        "initializer_range": recipe.initial_std,
    }


def write_configs(model: PreTrainedModel, directory: Path) -> None:
    """Write the configuration files, so that the codec reads the same folder that will be published."""
    model.config.save_pretrained(directory)
    words = model.config.get_text_config()
    ends, pad = words.eos_token_id, words.pad_token_id
    model.generation_config = GenerationConfig(eos_token_id=[ends], pad_token_id=pad, do_sample=True, top_k=0)
    model.generation_config.save_pretrained(directory)
    if not has_tower(model.config):
        return
    tower: Any = model.config.vision_config
    side = tower.patch_size * tower.spatial_merge_size
    least, most = side**2, (_MOST_SIDE * side) ** 2
    settings = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2_5_VLProcessor",
        "patch_size": tower.patch_size,
        "merge_size": tower.spatial_merge_size,
        "temporal_patch_size": tower.temporal_patch_size,
        "min_pixels": least,
        "max_pixels": most,
        "size": {"shortest_edge": least, "longest_edge": most},
        "do_resize": True,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "do_convert_rgb": True,
    }
    (directory / PREPROCESSOR).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
