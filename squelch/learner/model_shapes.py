"""Published shapes of the models that have recipes, entered by hand so that nothing has to be downloaded."""

from typing import Any

from transformers import LlamaConfig, PreTrainedConfig, Qwen2_5_VLConfig, Qwen2Config

QWEN2: dict[str, Any] = {
    "max_position_embeddings": 32768,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}
NAMES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "tie_word_embeddings",
)
QWEN2_SHAPES = {
    "Qwen2.5-0.5B": (896, 4864, 24, 14, 2, 151936, True),
    "Qwen2.5-1.5B": (1536, 8960, 28, 12, 2, 151936, True),
    "Qwen2.5-3B": (2048, 11008, 36, 16, 2, 151936, True),
    "Qwen2.5-3B-Instruct": (2048, 11008, 36, 16, 2, 151936, True),
    "Qwen2.5-7B": (3584, 18944, 28, 28, 4, 152064, False),
}
LLAMA_SHAPES = {
    "Llama-3.2-3B": (3072, 8192, 28, 24, 8, 128256, True),
    "SmolLM2-135M": (576, 1536, 30, 9, 3, 49152, True),
}
QWEN2_VL_SHAPES = {"Qwen2.5-VL-3B-Instruct": QWEN2_SHAPES["Qwen2.5-3B"]}
"""Of the decoder; the tower of this size has the configuration's defaults but for what it hands to the decoder."""
SHAPES = (*QWEN2_SHAPES, *QWEN2_VL_SHAPES, *LLAMA_SHAPES)

PACKAGED = {"smollm2": "SmolLM2-135M"}
"""Shapes of the models that `model.path` knows by a short name."""


def published(name: str) -> PreTrainedConfig:
    """The configuration of a model in the tables, with its published shape. Raises KeyError for other names."""
    if name in LLAMA_SHAPES:
        llama: dict[str, Any] = dict(zip(NAMES, LLAMA_SHAPES[name], strict=True))
        return LlamaConfig(**llama, max_position_embeddings=131072 if name.startswith("Llama-3") else 8192)
    if name in QWEN2_VL_SHAPES:
        text: dict[str, Any] = dict(zip(NAMES, QWEN2_VL_SHAPES[name], strict=True))
        tied, hidden = text.pop("tie_word_embeddings"), text["hidden_size"]
        tower = {"hidden_size": 1280, "out_hidden_size": hidden}
        proven = ["Qwen2_5_VLForConditionalGeneration"]
        return Qwen2_5_VLConfig(text_config=text, vision_config=tower, tie_word_embeddings=tied, architectures=proven)
    qwen2: dict[str, Any] = dict(zip(NAMES, QWEN2_SHAPES[name], strict=True))
    return Qwen2Config(**qwen2, **QWEN2)
