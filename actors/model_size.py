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
    which each token is multiplied (all but an embedding that is not tied to the head)."""

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


def model_size(config: PreTrainedConfig, parameters: int) -> ModelSize:
    """The size of the model with this configuration and number of parameters; of one with a vision tower, that of its
    decoder, whose `multiplied` counts the tower's parameters too."""
    text: Any = config.get_text_config()
    embedding = 0 if config.tie_word_embeddings else text.vocab_size * text.hidden_size
    return ModelSize(
        parameters,
        parameters - embedding,
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        intermediate=text.intermediate_size,
        heads=text.num_attention_heads,
        key_value_heads=text.num_key_value_heads,
        head_size=vars(text).get("head_dim") or text.hidden_size // text.num_attention_heads,
        vocabulary=text.vocab_size,
    )
