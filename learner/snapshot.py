"""What a training step may have to be taken back to: a rank's trained shards and their optimizer's state.

Kept on the host, whatever the device: beside a GPU's shards the copies would be as large as the masters and both Adam
moments together (12 bytes a parameter). A snapshot restores bit for bit.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer


@dataclass(frozen=True)
class Snapshot:
    """Of one optimizer and its parameters; whoever holds it holds its memory."""

    optimizer: Optimizer
    shards: dict[Tensor, Tensor]
    """By parameter."""
    state: dict[Tensor, dict[str, Any]]
    """By parameter and by name; empty for a parameter that had none yet."""

    @classmethod
    def of(cls, optimizer: Optimizer) -> "Snapshot":
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        state = {p: {name: _copy(value) for name, value in optimizer.state.get(p, {}).items()} for p in parameters}
        return cls(optimizer, {p: _copy(p) for p in parameters}, state)

    @torch.no_grad()
    def restore(self) -> None:
        """Puts everything back; gradients are left alone."""
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
