"""Sketches of gradients: a few thousand numbers each, whose inner products estimate those of the gradients.

A count sketch (Charikar, Chen and Farach-Colton 2002) adds each coordinate, with a random sign, to one of `width`
random buckets. For gradients x and y the inner product of their sketches is unbiased for <x, y>, with variance at most
(|x|^2 |y|^2 + <x, y>^2) / width: at 2^16 buckets the cosine of two gradients is known to 0.004. Linear combinations of
sketches are sketches of the combinations, so that one pass over the groups serves every choice of groups.

Invariants: all sketches of one `Sketcher` share their buckets and signs, which are a function of the seed, the rank and
the sizes of the shards, so a repeated run makes the same sketches. A rank holds one code of 4 bytes per trained
parameter of its shards. Making a sketch is a collective, because the ranks' sketches are summed.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

WIDTH = 2**16


class Sketcher:
    """Sketches of gradients that are sharded alike. `sizes`: number of elements of each of this rank's shards;
    `device`: that of the shards."""

    def __init__(self, sizes: Sequence[int], rank: int, device: torch.device, width: int = WIDTH) -> None:
        generator = torch.Generator().manual_seed(1_000_003 * rank + 17)
        self.width = width
        self._codes = [
            torch.randint(0, 2 * width, (size,), generator=generator, dtype=torch.int32).to(device) for size in sizes
        ]

    def __call__(self, shards: Sequence[Tensor]) -> Tensor:
        """(width,) float64, on the CPU: the sketch of the whole gradient. A collective."""
        total: Tensor | None = None
        for codes, shard in zip(self._codes, shards, strict=True):
            values = shard.flatten().double() * (1 - 2 * (codes & 1))
            total = values.new_zeros(self.width) if total is None else total
            total.index_add_(0, codes >> 1, values)
        if total is None:
            raise RuntimeError("a gradient without parameters has no sketch")
        dist.all_reduce(total)
        return total.cpu()
