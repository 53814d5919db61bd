"""Snapshot of a rank's trained shards and their optimizer's state, from which a refused training step is undone.

Snapshots are always kept in host memory: on a GPU they would take as much memory again as the master weights and both
Adam moments together (12 bytes per parameter). Restored values are bit-identical.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer


@dataclass(frozen=True)
class Snapshot:
    """Copies of one optimizer's state and its parameters; their memory is freed with the snapshot."""

    optimizer: Optimizer
    shards: dict[Tensor, Tensor]
    """Copy of this rank's shard, by parameter."""
    state: dict[Tensor, dict[str, Any]]
    """Copy of the optimizer's state, by parameter and name; empty for a parameter without state yet."""

    @classmethod
    def of(cls, optimizer: Optimizer) -> "Snapshot":
        """Copies the present parameters and state of `optimizer`."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        state = {p: {name: _copy(value) for name, value in optimizer.state.get(p, {}).items()} for p in parameters}
        return cls(optimizer, {p: _copy(p) for p in parameters}, state)

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


def _copy(value: Any) -> Any:
    return _local(value).detach().to("cpu", copy=True) if isinstance(value, Tensor) else value
