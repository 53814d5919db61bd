"""What is counted of a model: its size, the weights that hold the experts of a mixture, and the numbers of these by
which a token is multiplied."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from squelch.actors.model_size import ModelSize, decoder_config
from squelch.kit.packed.vision import tower


def expert_weights(model: PreTrainedModel) -> dict[str, nn.Parameter]:
    """The weights that hold a matrix for each expert, by name: all with three dimensions, but for convolutions."""
    seeing = tower(model)
    of_tower = set() if seeing is None else set(seeing.modules())
    return {
        f"{path}.{name}": weight
        for path, module in model.named_modules()
        if not isinstance(module, nn.Conv1d) and module not in of_tower
        for name, weight in module.named_parameters(recurse=False)
        if weight.dim() == 3
    }


def used_numbers(weight: nn.Parameter, config: PreTrainedConfig) -> int:
    """The numbers in the matrices of those experts that a token is fed to. Raises ValueError, naming the architecture,
    if the configuration does not state how many these are."""
    text: Any = config.get_text_config()
    if not hasattr(text, "num_experts_per_tok"):
        raise ValueError(f"model_type={text.model_type} states no num_experts_per_tok; such mixtures are not supported")
    return weight.numel() // len(weight) * min(text.num_experts_per_tok, len(weight))


def model_size(model: PreTrainedModel) -> ModelSize:
    """The size of a model, which may be on torch's meta device; of one with a vision tower, that of its decoder, whose
    `multiplied` counts the tower's parameters too. Raises ValueError if its configuration does not state its sizes."""
    config, parameters = model.config, sum(parameter.numel() for parameter in model.parameters())
    text = decoder_config(config)
    idle = sum(weight.numel() - used_numbers(weight, config) for weight in expert_weights(model).values())
    embedding = 0 if config.tie_word_embeddings else text.vocab_size * text.hidden_size
    return ModelSize(
        parameters,
        parameters - embedding - idle,
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        intermediate=text.intermediate_size,
        heads=text.num_attention_heads,
        key_value_heads=text.num_key_value_heads,
        head_size=vars(text).get("head_dim") or text.hidden_size // text.num_attention_heads,
        vocabulary=text.vocab_size,
    )
