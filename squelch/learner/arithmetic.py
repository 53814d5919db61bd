"""Operations of the policy's passes over packed rows, counted from its layers: what MFU is measured by.

Two operations for each number of a linear layer and token, in a forward pass, for the gradient of the input, and for
that of the layer's numbers if they are trained; of a mixture the experts to which a token is fed, and the router. The
head is applied at sampled tokens alone. Attention has seven products (two forward, five backward) over the pairs that a
causal mask leaves: with a sliding window it is counted too high. Recomputed activations, sums of experts and their
adapters, and a vision tower are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from torch import nn
from transformers import PreTrainedModel

from squelch.actors.gpus.records import Operations
from squelch.actors.model_counts import expert_weights, used_numbers
from squelch.actors.model_size import decoder_config
from squelch.kit.packed.vision import tower
from squelch.learner.policy.lora import Adapters


@dataclass(frozen=True)
class Arithmetic:
    """Numbers by which a token is multiplied: in the layers (`linear`) and in the head, of which so many are trained;
    `attended`: numbers that a product of attention multiplies for a pair of tokens."""

    linear: int
    linear_trained: int
    head: int
    head_trained: int
    attended: int

    @classmethod
    def of(cls, model: PreTrainedModel, adapters: Adapters) -> Arithmetic:
        """The arithmetic of a model, whose parameters may be sharded. `adapters`: those in it."""
        config, output = decoder_config(model.config), cast("nn.Linear", model.get_output_embeddings())
        weights = _weights(model, output, adapters)
        head = output.weight
        size = vars(config).get("head_dim") or config.hidden_size // config.num_attention_heads
        return cls(
            linear=sum(numbers for numbers, _ in weights),
            linear_trained=sum(numbers for numbers, trained in weights if trained),
            head=head.numel(),
            head_trained=head.numel() if head.requires_grad else 0,
            attended=config.num_hidden_layers * config.num_attention_heads * size,
        )

    def trained(self, tokens: int, sampled: int, pairs: int) -> tuple[float, float]:
        """(products, attention's products) of a forward and a backward pass over `tokens` packed tokens, of which
        `sampled` are learned from, and which attend to `pairs` pairs."""
        layers = (2 * self.linear + self.linear_trained) * tokens
        return 2.0 * (layers + (2 * self.head + self.head_trained) * sampled), 14.0 * pairs * self.attended

    def total(self, passes: tuple[float, float]) -> Operations:
        """The operations of passes, with those of one sampled token."""
        return Operations(*passes, per_token=2.0 * (self.linear + self.head))


def _weights(model: PreTrainedModel, output: nn.Module, adapters: Adapters) -> list[tuple[int, bool]]:
    """For each matrix of the layers, or of a mixture's experts: by how many of its numbers a token is multiplied, and
    whether its gradient is computed, as it is for experts that have adapters."""
    seeing = tower(model)
    without = {output, *(() if seeing is None else seeing.modules())}
    adapted = {weight: own for weight, own in adapters.items() if own.experts is not None}
    merged = {name for own in adapted.values() for name in (own.down, own.up)}
    found = [
        (used_numbers(weight, model.config), weight.requires_grad or name in adapted)
        for name, weight in expert_weights(model).items()
    ]
    for path, module in model.named_modules():
        weight = vars(module)["_parameters"].get("weight")
        if module in without or isinstance(module, nn.Embedding) or weight is None or weight.dim() != 2:
            continue
        if f"{path}.weight" not in merged:
            found.append((weight.numel(), weight.requires_grad))
    return found
