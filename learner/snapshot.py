"""Snapshot of a rank's trained shards and their optimizer's state, from which a refused training step is undone.

Snapshots are always kept in host memory: on a GPU they would take as much memory again as the master weights and both
Adam moments together (12 bytes per parameter). GPU tensors are copied into pinned pages that the next snapshot reuses:
into new pages a publication copied only 1.1 to 1.6 GiB a second (docs/research/results.md). Restored values are
bit-identical.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer


class Pages:
    """Pinned host memory for the snapshots of one trainer; a later snapshot overwrites an earlier one's."""

    def __init__(self) -> None:
        self._of: dict[tuple[Tensor, str], Tensor] = {}

    def copy(self, value: Any, owner: Tensor, name: str) -> Any:
        """A copy, in host memory, of the state `name` of the parameter `owner`. A tensor that is in host memory already
        is copied to new memory, which is freed with the copy."""
        if not isinstance(value, Tensor):
            return value
        source = _local(value).detach()
        if not source.is_cuda:
            return source.clone()
        held = self._of.get((owner, name))
        if held is None:
            held = self._of[owner, name] = torch.empty_like(source, device="cpu", pin_memory=True)
        return held.copy_(source, non_blocking=True)


@dataclass(frozen=True)
class Snapshot:
    """Copies of one optimizer's state and its parameters."""

    optimizer: Optimizer
    shards: dict[Tensor, Tensor]
    """Copy of this rank's shard, by parameter."""
    state: dict[Tensor, dict[str, Any]]
    """Copy of the optimizer's state, by parameter and name; empty for a parameter without state yet."""

    @classmethod
    def of(cls, optimizer: Optimizer, pages: Pages) -> "Snapshot":
        """Copies the present parameters and state of `optimizer`."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        kept = {p: optimizer.state.get(p, {}) for p in parameters}
        state = {p: {name: pages.copy(value, p, name) for name, value in kept[p].items()} for p in parameters}
        shards = {p: pages.copy(p, p, "shard") for p in parameters}
        if any(p.is_cuda for p in parameters):
            torch.cuda.current_stream().synchronize()  # the copies are only under way
        return cls(optimizer, shards, state)

    @torch.no_grad()
    def restore(self) -> None:
        """Restores parameters and optimizer state; gradients do not change."""
        state = self.optimizer.state
        for p, shard in self.shards.items():
            _local(p).copy_(shard)
            if not self.state[p]:
                state.pop(p, None)
            for name, value in self.state[p].items():
                if isinstance(value, Tensor):
                    _local(state[p][name]).copy_(value)
                else:
                    state[p][name] = value


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
