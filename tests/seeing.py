"""A tiny random vision-language model and boards to show it, for tests of every room."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from squelch.kit.records.pictures import Picture

VOCABULARY = 96
START, END, PLACEHOLDER, VIDEO = 90, 91, 92, 93
PATCH, MERGE = 4, 2
SIDE = PATCH * MERGE
"""Pixels of a side of what becomes one placeholder."""


def make_seeing_model(folder: Path, layers: int = 2, width: int = 64, deep: int = 2, tied: bool = True) -> Path:
    """Writes a random Qwen2.5-VL as a Hugging Face folder, without a tokenizer; `deep`: blocks of its tower. Its
    weights are a function of the arguments."""
    torch.manual_seed(7)
    text: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.1,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 100.0,
            "mrope_section": [width // 32, 3 * width // 64, 3 * width // 64],
        },
        "bos_token_id": None,
        "eos_token_id": 1,
        "pad_token_id": 0,
        "dtype": "float32",
    }
    vision = {
        "depth": deep,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": 2,
        "window_size": 2 * SIDE,
        "out_hidden_size": width,
        "fullatt_block_indexes": [deep - 1],
        "initializer_range": 0.1,
    }
    ids = {
        "vision_start_token_id": START,
        "vision_end_token_id": END,
        "image_token_id": PLACEHOLDER,
        "video_token_id": VIDEO,
    }
    config = Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
        **ids,
    )
    model = Qwen2_5_VLForConditionalGeneration(config)
    model.generation_config = GenerationConfig(eos_token_id=[1], pad_token_id=0)
    model.save_pretrained(folder)
    shown = {
        "patch_size": PATCH,
        "merge_size": MERGE,
        "temporal_patch_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "min_pixels": SIDE * SIDE,
        "max_pixels": 100 * SIDE * SIDE,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(shown))
    return folder


CHAT_TEMPLATE = """\
{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}
{%- if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}
{%- endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""In the manner of Qwen2.5-VL's."""
WORDS = [space + letter for space in ("", "Ġ") for letter in "abcdefghijklmnopqrstuvwxyz"]
WORDS += ["<", "|", ">", "_", "vision", "start", "end", "image", "pad"]
"""What a test may say: letters, with or without a space before them, and the parts of a picture's tokens."""


def make_talking_model(model: Path, folder: Path, template: str = CHAT_TEMPLATE) -> Path:
    """The model of `make_seeing_model` with a tokenizer of one token a word, and a chat template."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    from squelch.kit.text.tokenizer import write_settings
    from squelch.learner.warmup.tiny_tokenizer import PATTERN, VISION_TOKENS

    shutil.copytree(model, folder)
    markers = ["<think>", "</think>", "Ġ</think>", "<answer>", "</answer>", "Ġ<answer>", "Ġ</answer>"]
    names = ["<|pad|>", "<|im_end|>", "<|im_start|>", "<unk>", "system", "user", "assistant", "Ċ", *markers, *WORDS]
    names += [f"<|unused{index}|>" for index in range(len(names), VOCABULARY)]
    names[START : VIDEO + 1] = VISION_TOKENS.values()
    tokenizer = Tokenizer(models.WordLevel({name: index for index, name in enumerate(names)}, unk_token="<unk>"))
    words = pre_tokenizers.Split(Regex(PATTERN), behavior="isolated")
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, letters])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([*names[:4], *(name for name in names if name.startswith("<|"))])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "eos_token": "<|im_end|>"}
    write_settings(folder / "tokenizer_config.json", settings)
    (folder / "chat_template.jinja").write_text(template)
    return folder


def board(seed: int, rows: int = 3, columns: int = 3) -> Picture:
    """A picture of `rows` x `columns` cells of random colours, each of which becomes one placeholder."""
    cells = np.random.default_rng(seed).integers(0, 256, (rows, columns, 3)).astype(np.uint8)
    return Picture(cells.repeat(SIDE, 0).repeat(SIDE, 1))
