"""What the tiny policy's layers are fed for a batch of demonstrations: ids, or with pictures embeddings and positions.

Invariants:

- A picture's features stand where its demonstration says, never where an id says so: the policy may have said the
  placeholder's id itself.
- Equal pictures of a batch are encoded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from transformers import PreTrainedModel

from squelch.kit.packed.vision import features
from squelch.kit.pictures.arrays import Shown, positions_of
from squelch.kit.pictures.geometry import Vision
from squelch.kit.records.pictures import Picture
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


def inputs(
    model: PreTrainedModel, batch: Sequence[Demonstration], tokens: torch.Tensor, vision: Vision | None
) -> Inputs:
    """The inputs for a batch, whose ids are `tokens`, padded on the right. `vision`: of a model with a tower."""
    if vision is None:
        return Inputs(tokens)
    (rows, width), known = tokens.shape, dict[str, Shown]()
    shown = [[_shown(at, picture, vision, known) for at, picture in one.pictures] for one in batch]
    positions = np.zeros((3, rows, width), np.int64)
    for row, (one, own) in enumerate(zip(batch, shown, strict=True)):
        positions[:, row, : len(one.token_ids)] = positions_of(len(one.token_ids), own, vision)
    embeddings = model.get_input_embeddings()(tokens)
    if known:
        fed = torch.from_numpy(np.concatenate([one.patches for one in known.values()]))
        grids = torch.tensor([(1, *one.grid) for one in known.values()])
        parts = features(model, fed, grids).split([one.num_tokens(vision) for one in known.values()])
        found = dict(zip(known, parts, strict=True))
        spots = [(row * width + one.position, one) for row, own in enumerate(shown) for one in own]
        places = torch.cat([torch.arange(at, at + one.num_tokens(vision)) for at, one in spots])
        values = torch.cat([found[one.digest] for _, one in spots])
        embeddings = embeddings.flatten(0, 1).index_copy(0, places, values).view_as(embeddings)
    return Inputs(tokens, embeddings, torch.from_numpy(positions))


def _shown(at: int, picture: Picture, vision: Vision, known: dict[str, Shown]) -> Shown:
    """The picture at a place; `known` holds each distinct one."""
    if picture.identity not in known:
        known[picture.identity] = Shown.of(0, picture.rgb, vision, picture.identity)
    return replace(known[picture.identity], position=at)
