"""Tensors of a micro-batch on the device, on which the trainer computes."""

from collections.abc import Collection
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from squelch.kit.packed.layout import Layout
from squelch.kit.packed.vision import PictureTensors
from squelch.learner.batching import MicroBatch, OptimizerStep, Row
from squelch.learner.config import ObjectiveConfig
from squelch.learner.objective.components import StepSize
from squelch.learner.objective.losses import TokenBatch, sequence_mask, sequences_of, token_weights

Inputs = tuple[Tensor, Tensor, Tensor, Layout]
"""(input_ids, positions, targets, layout), as `Policy.forward` takes them."""


@dataclass(frozen=True)
class Batch:
    """One micro-batch. `recomputed`: (num_sampled,) the learner's log-probabilities at step start, or None."""

    rows: tuple[Row, ...]
    inputs: Inputs
    tokens: TokenBatch
    recomputed: Tensor | None
    versions: Tensor
    """(num_sampled,) the policy version that sampled each token."""
    lengths: Tensor
    """(num_sequences,) sampled tokens of each trajectory in this micro-batch."""
    values: Tensor | None = None
    """(num_sampled,) the critic's values at the start of the training step; None without a critic."""
    ends: Tensor | None = None
    """(num_rows,) value of the state after each row; 0 if the episode ended there."""
    returns: Tensor | None = None
    """(num_sampled,) targets of the critic."""
    pairs: int = 0
    """Pairs of tokens between which its rows attend."""

    def only(self, groups: Collection[str]) -> "Batch":
        """The batch restricted to the sampled tokens of these groups. Inputs stay complete, weights do not change."""
        input_ids, positions, targets, layout = self.inputs
        wanted = torch.tensor([row.group_id in groups for row in self.rows], dtype=torch.bool)
        lengths = torch.tensor([row.num_sampled for row in self.rows], dtype=torch.int64)
        keep = wanted.repeat_interleave(lengths).to(positions.device)
        tokens = self.tokens
        return replace(
            self,
            inputs=(input_ids, positions[keep], targets[keep], layout),
            tokens=TokenBatch(
                rollout=tokens.rollout[keep],
                anchor=tokens.anchor[keep],
                advantages=tokens.advantages[keep],
                weights=tokens.weights[keep],
                sequences=tokens.sequences[keep],
                reference=None if tokens.reference is None else tokens.reference[keep],
                spared=None if tokens.spared is None else tokens.spared[keep],
            ),
            recomputed=None if self.recomputed is None else self.recomputed[keep],
            versions=self.versions[keep],
            values=None if self.values is None else self.values[keep],
            returns=None if self.returns is None else self.returns[keep],
        )


def to_batch(micro: MicroBatch, part: OptimizerStep, objective: ObjectiveConfig, device: torch.device) -> Batch:
    """Moves a micro-batch of the optimizer step `part` to the device. Its anchor is the rollout."""
    size = StepSize(part.num_sequences, part.num_tokens, objective.normaliser_tokens)
    lengths, totals = torch.from_numpy(micro.lengths), torch.from_numpy(micro.totals)
    rollout = torch.from_numpy(micro.rollout).to(device)
    tokens = TokenBatch(
        rollout=rollout,
        anchor=rollout,
        advantages=torch.from_numpy(micro.advantages).to(device),
        weights=token_weights(lengths, objective.aggregation, size, totals).to(device),
        sequences=sequences_of(lengths).to(device),
        reference=None,
        spared=None if micro.spared is None else torch.from_numpy(micro.spared).to(device),
    )
    versions = torch.from_numpy(micro.versions).to(device)
    inputs = inputs_of(micro, device)
    return Batch(micro.rows, inputs, tokens, None, versions, lengths.to(device), pairs=micro.forest.pairs())


def scored(batch: Batch, objective: ObjectiveConfig, recomputed: Tensor | None, reference: Tensor | None) -> Batch:
    """The batch with the log-probabilities computed at the start of the training step.

    Sequences that `max_mismatch` excludes get weight 0.
    """
    tokens = replace(batch.tokens, reference=reference)
    if recomputed is not None and objective.anchor == "recomputed":
        tokens = replace(tokens, anchor=recomputed)
    if recomputed is not None and objective.max_mismatch:
        kept = sequence_mask(recomputed, tokens.rollout, batch.lengths, objective.max_mismatch, tokens.sequences)
        tokens = replace(tokens, weights=tokens.weights * kept[tokens.sequences])
    return replace(batch, tokens=tokens, recomputed=recomputed)


def inputs_of(micro: MicroBatch, device: torch.device) -> Inputs:
    """The policy's inputs, on the device. Raises ValueError for rows with pictures if the policy has no vision
    tower."""
    for row in micro.rows:
        if row.pictures and micro.pictures is None:
            raise ValueError(
                f"group {row.group_id}, trajectory {row.index} shows {len(row.pictures)} pictures, and the policy is "
                "fed token ids alone; train a model with a vision tower, or on an environment that shows text"
            )
    arrays = (micro.forest.token_ids[None], micro.positions, micro.targets)
    ids, positions, targets = (torch.from_numpy(array).to(device) for array in arrays)
    pictures = None if micro.pictures is None else PictureTensors.of(micro.pictures, device)
    return ids, positions, targets, Layout.of(micro.forest, device, pictures)
