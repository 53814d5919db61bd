"""Which optimizer steps of a training step have a gradient.

An optimizer step has none if the surrogate of all its tokens is 0 and neither a regulariser nor a critic learns from
any of them. It is left out, because Adam's moments would still change the parameters although these groups teach
nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from squelch.learner.config import ObjectiveConfig
from squelch.learner.objective.losses import TokenBatch
from squelch.learner.tensors import Batch


@dataclass(frozen=True)
class Signal:
    """`teaching`: whether each optimizer step has a gradient. `shares`: of the training step's tokens, those whose
    advantage is 0, and those that the mismatch mask excludes."""

    teaching: list[bool]
    shares: dict[str, float]


def signal(
    steps: Sequence[Sequence[Batch]],
    objective: ObjectiveConfig,
    without: Literal["task", "regulariser"],
    num_tokens: int,
    device: torch.device,
) -> Signal:
    """The signal of this rank's micro-batches of each optimizer step, over all ranks. A collective.

    Args:
        without: the term that spared tokens lack (`StepTerms.without`).
        num_tokens: sampled tokens of the training step, over all ranks.
    """
    counts = torch.zeros((len(steps), 3), dtype=torch.int64, device=device)
    for row, batches in zip(counts, steps, strict=True):
        for batch in batches:
            row += _counts(batch.tokens, objective, without)
    dist.all_reduce(counts)
    teaching, unranked, masked = counts.T.tolist()
    shares = {"zero_advantage_share": sum(unranked) / num_tokens, "masked_share": sum(masked) / num_tokens}
    return Signal([bool(count) for count in teaching], shares)


def _counts(tokens: TokenBatch, objective: ObjectiveConfig, without: Literal["task", "regulariser"]) -> Tensor:
    """(3,) int64: tokens with a gradient, of advantage 0, and of weight 0."""
    learned, ranked = tokens.weights > 0, tokens.advantages != 0
    entering = learned if tokens.spared is None else learned & ~tokens.spared
    of_task, of_rest = (entering, learned) if without == "task" else (learned, entering)
    taught = of_task & ranked
    if objective.entropy_coefficient > 0 or objective.kl_in_loss > 0:
        taught = taught | of_rest
    if objective.needs_critic:
        taught = taught | learned
    return torch.stack([taught.sum(), (~ranked).sum(), (tokens.weights == 0).sum()])
