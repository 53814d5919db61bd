"""The size of a model, from which memory and arithmetic operations are counted. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a number by the name of its type."""


@dataclass(frozen=True)
class ModelSize:
    """A decoder-only transformer. `parameters`: all of them, a tied head counted once; `multiplied`: the parameters by
    which each token is multiplied (all but an embedding that is not tied to the head, and the experts to which it is
    not fed)."""

    parameters: int
    multiplied: int
    layers: int
    hidden: int
    intermediate: int
    heads: int
    key_value_heads: int
    head_size: int
    vocabulary: int

    def cache_bytes(self, width: int) -> int:
        """Bytes of the keys and values of one token, `width` bytes a number."""
        return 2 * self.layers * self.key_value_heads * self.head_size * width

    def operations(self, context: float) -> float:
        """Floating-point operations of one token's forward pass; `context`: tokens to which it attends."""
        return 2.0 * self.multiplied + 4.0 * self.layers * self.heads * self.head_size * context


SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
"""What a configuration must state, beside the vocabulary's size."""
SUPPORTED = (
    "take a decoder-only model with attention over all tokens, such as Llama, Mixtral, Qwen2, Qwen3 or Qwen3-MoE"
)


def architecture(config: PreTrainedConfig) -> str:
    """The name of the model's class, or of its kind if the configuration names none."""
    return (config.architectures or [f"model_type={config.model_type}"])[0]


def decoder_config(config: PreTrainedConfig) -> Any:
    """The configuration of the decoder. Raises ValueError, naming the architecture, unless it states `SIZES`."""
    text = config.get_text_config()
    if missing := [name for name in SIZES if not hasattr(text, name)]:
        raise ValueError(
            f"{architecture(config)} cannot be trained (its configuration states no {' and no '.join(missing)}, from "
            f"which memory and operations are counted); {SUPPORTED}"
        )
    return text
