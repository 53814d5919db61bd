"""Whether an architecture computes on packed rows what it computes on each row alone.

The check runs on a copy with few layers, narrow and with random weights, because the answer does not depend on the
weights: the model itself may be larger than the memory of one rank.
"""

import math
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from squelch.actors.packed.layout import Layout
from squelch.actors.packed.packing import MIN_SAVED, pack

MOST = {"vocab_size": 256, "intermediate_size": 64, "moe_intermediate_size": 64}
"""Largest sizes of the copy."""
KEY_VALUE_HEADS = 2
WIDTH = 64
"""Width of a copy whose width is no multiple of its heads'."""
LOGITS = 8.0
"""Standard deviation of the copy's logits, about that of a trained model: a soft cap must show in them."""


def check_packed(config: PreTrainedConfig, attention: str) -> None:
    """Raises ValueError for a model whose logits differ from its head applied to hidden states of packed rows, with the
    registered attention function `attention`."""
    model = _small(config)
    rows = _check_rows(model.config.get_text_config().vocab_size)
    own = _own_logits(model, rows)
    model.set_attn_implementation(attention)
    _compare(model, rows, own)


def hidden_states(model: PreTrainedModel, input_ids: Tensor, layout: Layout) -> Tensor:
    """Inputs of the model's output head, (num_tokens, width), for (1, num_tokens) packed ids."""
    positions = layout.position_ids[None]
    found = model.base_model(input_ids=input_ids, position_ids=positions, use_cache=False, layout=layout)
    return found.last_hidden_state[0]


@torch.no_grad()
def _small(config: PreTrainedConfig) -> PreTrainedModel:
    """A copy of the architecture with random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(shrunken(config), dtype=torch.float32, attn_implementation="sdpa")
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=1 / math.sqrt(parameter.shape[-1]))
        head: Any = model.get_output_embeddings()
        head.weight.mul_(LOGITS)
    return model.eval()


def shrunken(config: PreTrainedConfig) -> PreTrainedConfig:
    """The configuration with one layer of each kind, but at least two if there are, and with small widths."""
    small = deepcopy(config)
    text = small.get_text_config()
    depth = text.num_hidden_layers
    each = {key: value for key, value in vars(text).items() if isinstance(value, list) and len(value) == depth}
    kinds = [tuple(map(str, layer)) for layer in zip(*each.values(), strict=True)] if each else [()] * depth
    kept = sorted({*range(min(2, depth)), *(kinds.index(kind) for kind in set(kinds))})
    text.num_hidden_layers = len(kept)
    for key, value in each.items():
        setattr(text, key, [value[layer] for layer in kept])
    sizes = vars(text)
    for key, most in MOST.items():
        if isinstance(sizes.get(key), int):
            setattr(text, key, min(sizes[key], most))
    if (sizes.get("pad_token_id") or 0) >= MOST["vocab_size"]:
        text.pad_token_id = None
    _narrow(text)
    return small


def _narrow(text: PreTrainedConfig) -> None:
    """Reduces heads and width; the width of a head and the number of heads that share keys stay."""
    sizes = vars(text)
    heads, shared = sizes.get("num_attention_heads"), sizes.get("num_key_value_heads")
    if not heads or not shared or shared <= KEY_VALUE_HEADS or heads % shared:
        return
    width, size = text.hidden_size, sizes.get("head_dim") or text.hidden_size // heads
    fewer = heads // shared * KEY_VALUE_HEADS
    text.num_attention_heads, text.num_key_value_heads = fewer, KEY_VALUE_HEADS
    text.hidden_size = size * fewer if size * heads == width else min(width, WIDTH)


def _check_rows(vocabulary: int) -> list[np.ndarray]:
    """Two rows whose shared prefix is long enough for packing to store it as a separate segment."""
    opening = np.arange(2 * MIN_SAVED)
    return [np.concatenate([opening, 3 + k + np.arange(4 + k)]) % vocabulary for k in range(2)]


@torch.no_grad()
def _own_logits(model: PreTrainedModel, rows: Sequence[np.ndarray]) -> list[Tensor]:
    return [model(input_ids=torch.from_numpy(row)[None], use_cache=False).logits[0] for row in rows]


@torch.no_grad()
def _compare(model: PreTrainedModel, rows: Sequence[np.ndarray], own: Sequence[Tensor]) -> None:
    forest = pack(rows)
    ids = torch.from_numpy(forest.token_ids)[None]
    head: Any = model.get_output_embeddings()
    logits = head(hidden_states(model, ids, Layout.of(forest, ids.device)))
    for place, wanted in zip(forest.places, own, strict=True):
        difference = float((logits[torch.from_numpy(place)] - wanted).abs().max())
        if not difference <= 1e-4 * max(1.0, float(wanted.abs().max())):
            raise ValueError(
                f"{type(model).__name__}: logits of packed rows are not the model's own (off by up to {difference:.3g} "
                "here): it changes them after the output head (a soft cap) or mixes tokens otherwise than by "
                "attention; such models are not supported"
            )
