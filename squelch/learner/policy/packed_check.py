"""Whether an architecture computes on packed rows what it computes on each row alone.

The check runs on a copy with few layers, narrow and with random weights, because the answer does not depend on the
weights: the model itself may be larger than the memory of one rank. Trained weights can also amplify rounding: control
tokens of SmolLM2-135M, whose hidden states reach 20,000, made it half of the tolerance, and of this copy 1/200.
"""

import math
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from squelch.actors.model_size import SUPPORTED, architecture, decoder_config
from squelch.kit.models.model_folder import auto_model, has_tower
from squelch.kit.packed.attention import prepare
from squelch.kit.packed.layout import Layout
from squelch.kit.packed.packing import MIN_SAVED, pack
from squelch.kit.packed.vision import PictureTensors, packed_states, use_attention
from squelch.kit.pictures.arrays import Shown, arrays_of
from squelch.kit.pictures.geometry import Grid, Vision
from squelch.kit.untrusted.files import decoding
from squelch.learner.kernels.choice import KERNELS

MOST = {"vocab_size": 256, "intermediate_size": 64, "moe_intermediate_size": 64}
"""Largest sizes of the copy."""
KEY_VALUE_HEADS = 2
WIDTH = 64
"""Width of a copy whose width is no multiple of its heads'."""
LOGITS = 8.0
"""Standard deviation of the copy's logits, about that of a trained model: a soft cap must show in them."""

TOLERANCE = 1e-4
"""Largest difference, as a share of the largest logit."""

_checked: set[tuple[type[PreTrainedConfig], str, str]] = set()
"""Configurations, and attention functions, that passed: policy, reference and critic have the same."""


def check_trainable(config: PreTrainedConfig, kernels: str) -> None:
    """Raises ValueError, naming the architecture, for a model that the learner cannot train with these kernels, a name
    in `KERNELS`. It needs no weights."""
    decoder_config(config)
    check_packed(config, KERNELS[kernels].attention)


def check_packed(config: PreTrainedConfig, attention: str) -> None:
    """Raises ValueError, naming the architecture, for a model that cannot compute with the registered attention
    function `attention`, or whose logits differ from its head applied to hidden states of packed rows. A process checks
    equal configurations once."""
    key = type(config), config.to_json_string(use_diff=False), attention
    if key in _checked:
        return
    with decoding(name := architecture(config), "cannot be trained", SUPPORTED):
        model = _small(config)
        vision = _vision(model.config) if has_tower(config) else None
        rows = _check_rows(model.config.get_text_config().vocab_size, vision)
        own = _own_logits(model, rows)
        use_attention(model, attention)
        difference = _difference(model, rows, own, vision)
    if not difference <= TOLERANCE:
        raise ValueError(
            f"{name}: logits of packed rows are not the model's own (off by up to {difference:.3g} of the largest "
            "here): it changes them after the output head (a soft cap) or mixes tokens otherwise than by attention; "
            f"such models are not supported; {SUPPORTED}"
        )
    _checked.add(key)


def hidden_states(model: PreTrainedModel, input_ids: Tensor, layout: Layout) -> Tensor:
    """Inputs of the model's output head, (num_tokens, width), for (1, num_tokens) packed ids."""
    prepare(layout, model.config)
    if layout.pictures is not None:
        return packed_states(model, input_ids, layout.pictures, layout=layout)
    positions = layout.position_ids[None]
    found = model.base_model(input_ids=input_ids, position_ids=positions, use_cache=False, layout=layout)
    return found.last_hidden_state[0]


@torch.no_grad()
def _small(config: PreTrainedConfig) -> PreTrainedModel:
    """A copy of the architecture with random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        small = shrunken(config)
        model = auto_model(small).from_config(small, dtype=torch.float32, attn_implementation="sdpa")
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
    if has_tower(small):
        _shrink_tower(small)
    return small


def _shrink_tower(small: Any) -> None:
    """Two blocks, the first with windows if the tower has any; the sizes of patches and of a head stay."""
    vision, text = small.vision_config, small.get_text_config()
    windows = set(range(vision.depth)) - set(vision.fullatt_block_indexes)
    size, vision.depth = vision.hidden_size // vision.num_heads, min(2, vision.depth)
    vision.fullatt_block_indexes = list(range(1 if windows and vision.depth > 1 else 0, vision.depth))
    vision.num_heads = min(KEY_VALUE_HEADS, vision.num_heads)
    vision.hidden_size, vision.intermediate_size = size * vision.num_heads, MOST["intermediate_size"]
    vision.out_hidden_size = text.hidden_size
    for place, key in enumerate(("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")):
        setattr(small, key, text.vocab_size - 1 - place)


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


class _Row(NamedTuple):
    """Ids, what distinguishes them from another row's (`kit.records.shared_prefix.identities`), and pictures."""

    ids: np.ndarray
    identity: np.ndarray
    shown: tuple[Shown, ...] = ()


def _check_rows(vocabulary: int, vision: Vision | None) -> list[_Row]:
    """Two rows whose shared prefix is long enough for packing to store it as a separate segment. With a tower the same
    ids, and another picture in either, follow it."""
    opening = np.arange(2 * MIN_SAVED)
    if vision is None:
        rows = [np.concatenate([opening, 3 + k + np.arange(4 + k)]) % vocabulary for k in range(2)]
        return [_Row(row, row) for row in rows]
    found, width = [], 3 * vision.temporal * vision.patch**2
    grid, at = Grid(2 * vision.merge, 2 * vision.merge), len(opening) + 1
    for k in range(2):
        ids = np.concatenate(
            [opening, [vision.start_id], np.full(4, vision.picture_id), [vision.end_id], 3 + k + np.arange(4 + k)]
        )
        identity = ids.copy()
        identity[at] = -1 - k
        pixels = np.random.default_rng(k).standard_normal((grid.rows * grid.columns, width), np.float32)
        found.append(_Row(ids, identity, (Shown(at, grid, pixels),)))
    return found


def _vision(config: Any) -> Vision:
    """How the copy is fed patches; pixels play no part."""
    tower, none = config.vision_config, (0.0, 0.0, 0.0)
    sizes = (tower.patch_size, tower.spatial_merge_size, tower.temporal_patch_size)
    ids = (config.vision_start_token_id, config.vision_end_token_id, config.image_token_id, config.video_token_id)
    return Vision("", *sizes, none, none, 0, 0, *ids)


@torch.no_grad()
def _own_logits(model: PreTrainedModel, rows: Sequence[_Row]) -> list[Tensor]:
    found = []
    for row in rows:
        ids = torch.from_numpy(row.ids)[None]
        fed: dict[str, Any] = {}
        for one in row.shown:
            config: Any = model.config
            grids = torch.tensor([(1, *one.grid)])
            fed = {"pixel_values": torch.from_numpy(one.patches), "image_grid_thw": grids}
            fed["mm_token_type_ids"] = (ids == config.image_token_id).long()
        found.append(model(input_ids=ids, use_cache=False, **fed).logits[0])
    return found


@torch.no_grad()
def _difference(model: PreTrainedModel, rows: Sequence[_Row], own: Sequence[Tensor], vision: Vision | None) -> float:
    """The largest difference between logits of packed rows and the model's own, as a share of the largest."""
    forest = pack([row.ids for row in rows], identities=[row.identity for row in rows])
    ids, pictures = torch.from_numpy(forest.token_ids)[None], None
    if vision is not None:
        arrays = arrays_of([row.shown for row in rows], forest.places, forest.num_tokens, vision)
        pictures = PictureTensors.of(arrays, ids.device)
    head: Any = model.get_output_embeddings()
    logits = head(hidden_states(model, ids, Layout.of(forest, ids.device, pictures)))
    return max(
        float((logits[torch.from_numpy(place)] - wanted).abs().max()) / max(1.0, float(wanted.abs().max()))
        for place, wanted in zip(forest.places, own, strict=True)
    )
