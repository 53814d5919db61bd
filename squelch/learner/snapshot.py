"""Snapshot of a rank's trained shards and their optimizer's state, from which a refused training step is undone.

Snapshots are always kept in host memory: on a GPU they would take as much memory again as the master weights and both
Adam moments together (12 bytes per parameter). GPU tensors are copied into pinned pages that the next snapshot reuses:
into new pages a weight sync copied only 1.1 to 1.6 GiB a second (docs/research/results.md). Restored values are
bit-identical.

On a GPU the copies run on a stream of their own, beside the first micro-batch, which only reads what they read. The
host does not wait:

| stream | waits for | because |
|---|---|---|
| copies | all work enqueued before the snapshot | the last optimizer step writes the parameters and the state |
| copies | a restore from the same pages | it reads the pages; it is among the work enqueued before |
| compute, before the first optimizer step (`Pages.wait`) | the copies | the step overwrites what they read |
| compute, in a restore | the copies | it reads the pages; it comes after `Pages.wait` in the stream's order |

On CPU the copies are made at once: a thread beside the forward pass would take its processors.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer


class Pages:
    """Pinned host memory for the snapshots of one trainer; a later snapshot overwrites an earlier one's."""

    def __init__(self, device: torch.device) -> None:
        """`device`: where the compute stream is; on CPU there are no streams."""
        self._of: dict[tuple[Tensor, str], Tensor] = {}
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @contextmanager
    def copying(self) -> Iterator[None]:
        """Within this context, copies are enqueued on the copy stream, behind the work that is enqueued so far."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield

    def wait(self) -> None:
        """Lets the work that is enqueued from now on wait for the copies; the host does not wait."""
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)

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
        """Copies the present parameters and state of `optimizer`. The caller must call `pages.wait` before it changes
        them."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        kept = {p: optimizer.state.get(p, {}) for p in parameters}
        with pages.copying():
            state = {p: {name: pages.copy(value, p, name) for name, value in kept[p].items()} for p in parameters}
            shards = {p: pages.copy(p, p, "shard") for p in parameters}
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
