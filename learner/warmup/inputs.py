"""What the tiny policy's layers are fed for a batch of demonstrations: ids, or with pictures embeddings and positions.

Invariants:

- A picture's features stand where its demonstration says, never where an id says so: the policy may have said the
  placeholder's id itself.
- Equal pictures of a batch are encoded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from squelch.actors.pictures.geometry import Vision
from squelch.actors.pictures.patches import patches
from squelch.actors.pictures.rope import rope_positions
from squelch.learner.warmup.demonstrations import Demonstration


@dataclass(frozen=True)
class Inputs:
    """The arguments of the layers. `tokens`: (rows, width) ids; `embeddings`, `positions`: (rows, width, hidden) and
    (3, rows, width) of a model with a tower, None of one without."""

    tokens: torch.Tensor
    embeddings: torch.Tensor | None = None
    positions: torch.Tensor | None = None

    def part(self, rows: slice, columns: slice) -> dict[str, torch.Tensor]:
        """The arguments for a part of the batch."""
        if self.embeddings is None or self.positions is None:
            return {"input_ids": self.tokens[rows, columns]}
        return {"inputs_embeds": self.embeddings[rows, columns], "position_ids": self.positions[:, rows, columns]}


def layers(model: PreTrainedModel) -> nn.Module:
    """The language model without its head."""
    return model.get_submodule("model.language_model" if hasattr(model.config, "vision_config") else "model")


def inputs(
    model: PreTrainedModel, batch: Sequence[Demonstration], tokens: torch.Tensor, vision: Vision | None
) -> Inputs:
    """The inputs for a batch, whose ids are `tokens`, padded on the right. `vision`: of a model with a tower."""
    if vision is None:
        return Inputs(tokens)
    rows, width = tokens.shape
    embeddings = model.get_input_embeddings()(tokens)
    shown = [(row * width + at, picture) for row, one in enumerate(batch) for at, picture in one.pictures]
    if shown:
        distinct = {picture.identity: picture for _, picture in shown}
        grids = [vision.grid(*picture.size) for picture in distinct.values()]
        counts = [grid.rows * grid.columns // vision.merge**2 for grid in grids]
        fed = np.concatenate([patches(picture.rgb, vision) for picture in distinct.values()])
        sizes = torch.tensor([(1, grid.rows, grid.columns) for grid in grids])
        features = model.get_submodule("model.visual")(torch.from_numpy(fed), grid_thw=sizes).pooler_output
        split = dict(zip(distinct, torch.split(features, counts), strict=True))
        places = torch.cat([torch.arange(at, at + len(split[picture.identity])) for at, picture in shown])
        found = torch.cat([split[picture.identity] for _, picture in shown])
        embeddings = embeddings.flatten(0, 1).index_copy(0, places, found).view(rows, width, -1)
    positions = np.zeros((3, rows, width), np.int64)
    for row, one in enumerate(batch):
        length = len(one.token_ids)
        at = [(place, vision.grid(*picture.size)) for place, picture in one.pictures]
        positions[:, row, :length] = rope_positions(length, at, vision.merge)
    return Inputs(tokens, embeddings, torch.from_numpy(positions))
