"""Models with a vision tower: feeds packed or padded rows with pictures to the decoder.

Features are put at places, never where a placeholder id is: the policy can sample that id, and then it is text. A model
without a tower is not touched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from squelch.kit.models.model_folder import has_tower
from squelch.kit.pictures.arrays import PictureArrays


@dataclass(frozen=True, eq=False)
class PictureTensors:
    """`PictureArrays` on the device."""

    patches: Tensor
    grids: Tensor
    places: Tensor
    rope: Tensor

    @classmethod
    def of(cls, arrays: PictureArrays, device: torch.device) -> PictureTensors:
        """The arrays on `device`."""
        found = (arrays.patches, arrays.grids, arrays.places, arrays.rope)
        return cls(*(torch.from_numpy(array).to(device) for array in found))


def tower(model: PreTrainedModel) -> Any:
    """The vision tower of a model, or of its part without the output head; None if it has none."""
    return vars(model.base_model)["_modules"].get("visual") if has_tower(model.config) else None


def decoder(model: PreTrainedModel) -> Any:
    """The model without its output head, and without a tower."""
    base: Any = model.base_model
    return base.language_model if has_tower(model.config) else base


def use_attention(model: PreTrainedModel, name: str) -> None:
    """Gives the decoder the registered attention function; a tower keeps PyTorch's own, whose rows are windows of a
    picture."""
    if has_tower(model.config):
        model.set_attn_implementation({"text_config": name, "vision_config": "sdpa", "": "sdpa"})
    else:
        model.set_attn_implementation(name)


def features(model: PreTrainedModel, patches: Tensor, grids: Tensor) -> Tensor:
    """(num_placeholders, width): what the decoder is fed for pictures, one after another."""
    return tower(model)(patches, grid_thw=grids).pooler_output


def embedded(model: PreTrainedModel, input_ids: Tensor, pictures: PictureTensors) -> Tensor:
    """(1, num_tokens, width): embeddings of (1, num_tokens) packed ids, with the pictures' features at their places."""
    embeds = model.get_input_embeddings()(input_ids)[0]
    found = features(model, pictures.patches, pictures.grids).to(embeds.dtype)
    if len(pictures.places):
        return embeds.index_copy(0, pictures.places, found)[None]
    return (embeds + 0.0 * found.sum())[None]  # other ranks may have pictures, and wait for the tower's gradients


def packed_states(model: PreTrainedModel, input_ids: Tensor, pictures: PictureTensors, **rest: Any) -> Tensor:
    """The decoder's last hidden states, (num_tokens, width), of (1, num_tokens) packed ids with pictures."""
    embeds, positions = embedded(model, input_ids, pictures), pictures.rope[:, None]
    found = decoder(model)(inputs_embeds=embeds, position_ids=positions, use_cache=False, **rest)
    return found.last_hidden_state[0]
