"""A micro-batch on the device, as the trainer runs it."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from learner.batching import MicroBatch, OptimizerStep, Row
from learner.objectives import TokenBatch, token_weights

Scorer = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(input_ids, positions, targets) -> log-probabilities (num_sampled,), without gradient."""


@dataclass(frozen=True)
class Batch:
    """`input_ids` (num_rows, width); `positions` and `targets` (num_sampled,) as in `Policy.forward`.

    `recomputed`: (num_sampled,) the learner's own log-probabilities at the start of the training step, or None.
    """

    rows: tuple[Row, ...]
    input_ids: Tensor
    positions: Tensor
    targets: Tensor
    tokens: TokenBatch
    recomputed: Tensor | None

    def only(self, group_id: str) -> "Batch":
        """The batch with nothing sampled but in rows of that group; their inputs and weights stay what they were."""
        wanted = torch.tensor([row.group_id == group_id for row in self.rows] or [False], device=self.positions.device)
        keep = wanted[self.positions // self.input_ids.shape[1]]
        tokens = self.tokens
        return replace(
            self,
            positions=self.positions[keep],
            targets=self.targets[keep],
            tokens=TokenBatch(
                rollout=tokens.rollout[keep],
                anchor=tokens.anchor[keep],
                advantages=tokens.advantages[keep],
                weights=tokens.weights[keep],
                reference=None if tokens.reference is None else tokens.reference[keep],
            ),
            recomputed=None if self.recomputed is None else self.recomputed[keep],
        )


def to_batch(
    micro: MicroBatch,
    part: OptimizerStep,
    aggregation: str,
    recomputed: Tensor | None,
    reference: Tensor | None,
    inputs: tuple[Tensor, Tensor, Tensor],
) -> Batch:
    """Join a micro-batch with its weights in the optimizer step `part` and what was computed at its start."""
    device = inputs[0].device
    rollout = torch.from_numpy(micro.rollout).to(device)
    lengths = torch.from_numpy(micro.lengths)
    tokens = TokenBatch(
        rollout=rollout,
        anchor=rollout if recomputed is None else recomputed,
        advantages=torch.from_numpy(micro.advantages).to(device),
        weights=token_weights(lengths, aggregation, part.num_sequences, part.num_tokens).to(device),
        reference=reference,
    )
    return Batch(micro.rows, *inputs, tokens, recomputed)


def inputs_of(micro: MicroBatch, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """(input_ids, positions, targets) on the device."""
    ids, positions, targets = (
        torch.from_numpy(a).to(device) for a in (micro.input_ids, micro.positions, micro.targets)
    )
    return ids, positions, targets
