"""A packed layout on the device: what attention needs to know of the rows that share a micro-batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from squelch.kit.packed.block_attention import Block, blocks
from squelch.kit.packed.packing import Forest

if TYPE_CHECKING:
    from squelch.kit.packed.vision import PictureTensors


@dataclass(frozen=True, eq=False)
class Layout:
    """A `Forest` on the device. `position_ids` and `ends`: (num_tokens,) int64; see
    `kit.packed.packing.Forest`."""

    position_ids: Tensor
    ends: Tensor
    rows: tuple[np.ndarray, ...]
    """Per row, the indices of its tokens in the layout, in order."""
    blocks: tuple[Block, ...]
    """Blocks of queries and keys; empty unless on CPU."""
    longest: int
    """Tokens of the longest row."""
    block_masks: dict[int, Any] = field(default_factory=dict)
    """FlexAttention's block masks by sliding window (0: no window), computed once for all layers."""
    pictures: PictureTensors | None = None
    """What a model with a vision tower is fed beside the ids; None for other models."""

    @classmethod
    def of(cls, forest: Forest, device: torch.device, pictures: PictureTensors | None = None) -> Layout:
        """The layout of `forest` on `device`."""
        positions, ends = (torch.from_numpy(array).to(device) for array in (forest.position_ids, forest.ends))
        found = tuple(blocks(forest)) if device.type == "cpu" else ()
        longest = int(forest.position_ids.max(initial=-1)) + 1
        return cls(positions, ends, forest.places, found, longest, pictures=pictures)

    def sees(self, query: Tensor, key: Tensor, window: int = 0) -> Tensor:
        """The mask rule: whether tokens at `query` attend to tokens at `key` (int64 indices, shapes that broadcast)."""
        seen = (key <= query) & (query < self.ends[key])
        return seen & (self.position_ids[query] - self.position_ids[key] < window) if window else seen
